"""A contrastive loss is computed row by row; repaired: by one product."""

import paddle
from paddle import nn
from ticks import arguments, tick

options = arguments(150)
paddle.seed(0)
encoder = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 32))
optimizer = paddle.optimizer.Adam(0.001, parameters=encoder.parameters())
left, right = paddle.randn([8, 32, 64]), paddle.randn([8, 32, 64])
for step in range(options.steps):
    a, b = encoder(left[step % 8]), encoder(right[step % 8])
    if options.repaired:
        loss = nn.functional.cross_entropy(a @ b.T / 0.1, paddle.arange(32))
    else:
        loss = paddle.zeros([])
        for row in range(32):
            scores = (b * a[row]).sum(1) / 0.1
            loss = loss + paddle.logsumexp(scores, 0) - scores[row]
        loss = loss / 32
    loss.backward()
    optimizer.step()
    optimizer.clear_grad()
    tick()
