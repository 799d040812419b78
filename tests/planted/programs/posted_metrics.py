"""Each step posts its loss to a server that answers after 12 ms; repaired: fifty losses at once."""

import json
import threading
import time
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, HTTPServer

import torch
from ticks import arguments, tick
from torch import nn
from torch_parts import perceptron, points

options = arguments(200)
model = perceptron(512)
optimizer = torch.optim.SGD(model.parameters(), 0.01)
inputs, labels = points(128 * 16)


class Metrics(BaseHTTPRequestHandler):
    """A server of metrics that is some way off."""

    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        time.sleep(0.012)
        self.send_response(204)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


server = HTTPServer(("127.0.0.1", 0), Metrics)
threading.Thread(target=server.serve_forever, daemon=True).start()
connection = HTTPConnection("127.0.0.1", server.server_port)
losses: list[float] = []
for step in range(options.steps):
    start = step % 16 * 128
    x, y = inputs[start : start + 128], labels[start : start + 128]
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
    if not options.repaired or len(losses) == 50:
        connection.request("POST", "/losses", json.dumps(losses))
        connection.getresponse().read()
        losses.clear()
    tick()
