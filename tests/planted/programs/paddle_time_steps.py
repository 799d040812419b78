"""A cell is called for each time step; repaired: the framework's own layer."""

import paddle
from ticks import arguments, tick

options = arguments(60)
paddle.seed(0)
lstm = paddle.nn.LSTM(32, 64)
cell, head = paddle.nn.LSTMCell(32, 64), paddle.nn.Linear(64, 10)
parameters = (lstm.parameters() if options.repaired else cell.parameters()) + head.parameters()
optimizer = paddle.optimizer.SGD(0.01, parameters=parameters)
inputs, labels = paddle.randn([8, 16, 48, 32]), paddle.randint(0, 10, [8, 16])
for step in range(options.steps):
    x, y = inputs[step % 8], labels[step % 8]
    if options.repaired:
        out, _ = lstm(x)
        h = out[:, -1]
    else:
        state = None
        for t in range(48):
            h, state = cell(x[:, t], state)
    loss = paddle.nn.functional.cross_entropy(head(h), y)
    loss.backward()
    optimizer.step()
    optimizer.clear_grad()
    tick()
