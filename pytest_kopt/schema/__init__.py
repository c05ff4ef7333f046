"""The frozen CSV: which columns a case has, how rows are written, read and matched."""
