"""`python -m pytest_kopt.cli`, the same as `kopt`."""

from pytest_kopt.cli.main import main

raise SystemExit(main())
