"""Checks and measures this campaign's quick level; judges and records nothing.

Run it in the project: python agent/workspace/rmsnorm/quick_test_bench.py --summary-csv rows.csv
"""

import sys
from pathlib import Path

from pytest_kopt.cli.quick_bench import main

sys.exit(main(Path(__file__).resolve().parent, sys.argv[1:]))
