#!/usr/bin/env python3
"""Learning rates, averaged weights and metrics of PyTorch, to compare with.

Usage: make_schedule_golden.py > schedules.txt     (needs torch; takes a second)

One line each: a name, then numbers. Schedules start at the rate 0.5 and have 100 steps: the rate of each. Those with a
warm-up are the formulas of transformers/optimization.py, which is not needed for that: they are LambdaLR there, too.
"""
import math
import sys
import warnings

import torch
from torch.optim import lr_scheduler as lr

STEPS, RATE, WARMUP = 100, 0.5, 10
warnings.filterwarnings("ignore")


def optimizer():
    return torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=RATE, momentum=0.9)


def rates(make):
    o = optimizer()
    scheduler = make(o)
    seen = []
    for _ in range(STEPS):
        seen.append(o.param_groups[0]["lr"])
        o.step()
        scheduler.step()
    return seen


def constant_with_warmup(step):
    return step / max(1, WARMUP) if step < WARMUP else 1.0


def linear_with_warmup(step):
    if step < WARMUP:
        return step / max(1, WARMUP)
    return max(0.0, (STEPS - step) / max(1, STEPS - WARMUP))


def cosine_with_warmup(step, cycles=0.5):
    if step < WARMUP:
        return step / max(1, WARMUP)
    progress = (step - WARMUP) / max(1, STEPS - WARMUP)
    return max(0.0, 0.5 * (1.0 + math.cos(math.pi * cycles * 2.0 * progress)))


def polynomial_with_warmup(step, end=0.005, power=2.0):
    if step < WARMUP:
        return step / max(1, WARMUP)
    if step > STEPS:
        return end / RATE
    remaining = 1 - (step - WARMUP) / (STEPS - WARMUP)
    return ((RATE - end) * remaining**power + end) / RATE


SCHEDULES = {
    "constant_with_warmup": lambda o: lr.LambdaLR(o, constant_with_warmup),
    "linear_with_warmup": lambda o: lr.LambdaLR(o, linear_with_warmup),
    "cosine_with_warmup": lambda o: lr.LambdaLR(o, cosine_with_warmup),
    "cosine_of_three_waves": lambda o: lr.LambdaLR(o, lambda step: cosine_with_warmup(step, 1.5)),
    "polynomial_with_warmup": lambda o: lr.LambdaLR(o, polynomial_with_warmup),
    "LinearLR": lambda o: lr.LinearLR(o, start_factor=1.0, end_factor=0.25, total_iters=STEPS),
    "CosineAnnealingLR": lambda o: lr.CosineAnnealingLR(o, T_max=STEPS, eta_min=0.05),
    "PolynomialLR": lambda o: lr.PolynomialLR(o, total_iters=STEPS, power=3),
    "OneCycleLR": lambda o: lr.OneCycleLR(o, max_lr=RATE, total_steps=STEPS, cycle_momentum=False),
    "OneCycleLR_linear": lambda o: lr.OneCycleLR(
        o, max_lr=RATE, total_steps=STEPS, pct_start=0.5, anneal_strategy="linear", div_factor=10, final_div_factor=100,
        cycle_momentum=False),
}

# What evaluations came to, and the rate behind each.
METRICS = [math.sin(0.7 * i) / (1 + 0.2 * i) + 1 for i in range(60)]


def plateau(**options):
    o = optimizer()
    scheduler = lr.ReduceLROnPlateau(o, **options)
    seen = []
    for value in METRICS:
        scheduler.step(value)
        seen.append(o.param_groups[0]["lr"])
    return seen


def ema(decay=0.9):
    """Of a weight w that SGD moves by 0.1 a step: AveragedModel after each of 20 steps."""
    net = torch.nn.Linear(1, 1, bias=False)
    with torch.no_grad():
        net.weight.fill_(1.0)
    averaged = torch.optim.swa_utils.AveragedModel(net, avg_fn=lambda a, p, n: decay * a + (1 - decay) * p)
    seen = []
    for step in range(20):
        with torch.no_grad():
            net.weight.sub_(0.1 * (step % 3))
        averaged.update_parameters(net)
        seen.append(averaged.module.weight.item())
    return seen


def metrics():
    """Scores by a formula: top-3 hits, then macro precision, recall and F1 as scikit-learn's zero_division=0, perplexity."""
    samples, classes = 50, 5
    i = torch.arange(samples, dtype=torch.float64).unsqueeze(1)
    j = torch.arange(classes, dtype=torch.float64).unsqueeze(0)
    scores = torch.sin(1.7 * i + 2.3 * j) + 0.1 * j
    target = (torch.arange(samples) * 7 % 11) % 4  # class 4 never is
    top3 = scores.topk(3, 1).indices.eq(target.unsqueeze(1)).any(1).double().mean().item()
    predicted = scores.argmax(1)
    precision, recall, f1 = [], [], []
    for c in range(classes):
        hits = ((predicted == c) & (target == c)).sum().item()
        of, was = (predicted == c).sum().item(), (target == c).sum().item()
        precision.append(hits / of if of else 0.0)
        recall.append(hits / was if was else 0.0)
        f1.append(2 * hits / (of + was) if of + was else 0.0)
    loss = torch.nn.functional.cross_entropy(scores, target).item()
    return [top3] + [sum(x) / classes for x in (precision, recall, f1)] + [math.exp(loss)]


def more_metrics():
    """Of the scores above: the area under the ROC curve, by its definition over all pairs of probabilities that are
    rounded to 20 ranges; then mse, mae, rmse and R^2 of one column as a prediction of another."""
    i = torch.arange(50, dtype=torch.float64).unsqueeze(1)
    j = torch.arange(5, dtype=torch.float64).unsqueeze(0)
    scores = torch.sin(1.7 * i + 2.3 * j) + 0.1 * j
    target = (torch.arange(50) * 7 % 11) % 4 == 1
    rounded = (torch.sigmoid(scores[:, 0]) * 20).floor()
    positive, negative = rounded[target].unsqueeze(1), rounded[~target].unsqueeze(0)
    area = ((positive > negative).double() + 0.5 * (positive == negative).double()).mean().item()
    predicted, was = scores[:, 1], scores[:, 1] * 0.9 + scores[:, 2] * 0.2 + 0.1
    mse = torch.nn.functional.mse_loss(predicted, was).item()
    mae = torch.nn.functional.l1_loss(predicted, was).item()
    return [area, mse, mae, math.sqrt(mse), 1 - mse / was.var(unbiased=False).item()]


if __name__ == "__main__":
    print(f"made with torch {torch.__version__}", file=sys.stderr)
    lines = {name: rates(make) for name, make in SCHEDULES.items()}
    lines["ReduceLROnPlateau"] = plateau(factor=0.5, patience=3)
    lines["ReduceLROnPlateau_max"] = plateau(mode="max", factor=0.1, patience=2, threshold=0.01, cooldown=4, min_lr=0.001)
    lines["AveragedModel"] = ema()
    lines["metrics"] = metrics()
    lines["more_metrics"] = more_metrics()
    for name, numbers in lines.items():
        print(name, *(f"{number:.9g}" for number in numbers))
