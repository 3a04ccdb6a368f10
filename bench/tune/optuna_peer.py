"""Prints how many reports a second Optuna's SQLite storage takes: optuna_peer.py REPORTS"""
import os
import sys
import tempfile
import time

import optuna

optuna.logging.set_verbosity(optuna.logging.ERROR)
reports = int(sys.argv[1])
with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
    study = optuna.create_study(storage="sqlite:///" + os.path.join(folder, "study.db"), pruner=optuna.pruners.NopPruner())
    trial = study.ask()
    begin = time.monotonic()
    for step in range(reports):
        trial.report(0.5 + 1e-5 * step, step)
    print(reports / (time.monotonic() - begin))
