"""A model of many small operators runs in the dynamic graph; repaired: to_static."""

import paddle
from paddle import nn
from ticks import arguments, tick

options = arguments(300)
paddle.seed(0)


class Block(nn.Layer):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.value, self.gate, self.norm = nn.Linear(32, 32), nn.Linear(32, 32), nn.LayerNorm(32)

    def forward(self, x: paddle.Tensor) -> paddle.Tensor:
        h = self.norm(x)
        return x + paddle.tanh(self.value(h)) * nn.functional.sigmoid(self.gate(h)) * 0.5 + 0.1 * h


net = nn.Sequential(*[Block() for _ in range(16)], nn.Linear(32, 4))
if options.repaired:
    net = paddle.jit.to_static(net, full_graph=True)
optimizer = paddle.optimizer.SGD(0.01, parameters=net.parameters())
inputs, labels = paddle.randn([8, 16, 32]), paddle.randint(0, 4, [8, 16])
for step in range(options.steps):
    loss = nn.functional.cross_entropy(net(inputs[step % 8]), labels[step % 8])
    loss.backward()
    optimizer.step()
    optimizer.clear_grad()
    float(loss)
    tick()
