"""The model is called sample by sample; repaired: once for the batch."""

import paddle
from ticks import arguments, tick

options = arguments(100)
paddle.seed(0)
net = paddle.nn.Sequential(
    paddle.nn.Linear(128, 128),
    paddle.nn.ReLU(),
    paddle.nn.Linear(128, 128),
    paddle.nn.ReLU(),
    paddle.nn.Linear(128, 10),
)
optimizer = paddle.optimizer.SGD(0.01, parameters=net.parameters())
inputs, labels = paddle.randn([16, 32, 128]), paddle.randint(0, 10, [16, 32])
for step in range(options.steps):
    x, y = inputs[step % 16], labels[step % 16]
    if options.repaired:
        loss = paddle.nn.functional.cross_entropy(net(x), y)
    else:
        losses = [paddle.nn.functional.cross_entropy(net(x[i : i + 1]), y[i : i + 1]) for i in range(32)]
        loss = paddle.add_n(losses) / 32
    loss.backward()
    optimizer.step()
    optimizer.clear_grad()
    tick()
