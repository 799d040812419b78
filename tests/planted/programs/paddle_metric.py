"""A confusion matrix is counted from predictions one value at a time; repaired: in one call."""

import numpy as np
import paddle
from ticks import arguments, tick

options = arguments(100)
paddle.seed(0)
net = paddle.nn.Sequential(paddle.nn.Linear(256, 256), paddle.nn.ReLU(), paddle.nn.Linear(256, 10))
optimizer = paddle.optimizer.Adam(0.001, parameters=net.parameters())
inputs, labels = paddle.randn([16, 64, 256]), paddle.randint(0, 10, [16, 64])
confusion = np.zeros((10, 10), np.int64)
for step in range(options.steps):
    x, y = inputs[step % 16], labels[step % 16]
    logits = net(x)
    loss = paddle.nn.functional.cross_entropy(logits, y)
    loss.backward()
    optimizer.step()
    optimizer.clear_grad()
    predicted = logits.argmax(1)
    if options.repaired:
        np.add.at(confusion, (y.numpy(), predicted.numpy()), 1)
    else:
        for i in range(64):
            confusion[int(y[i]), int(predicted[i])] += 1
    tick()
