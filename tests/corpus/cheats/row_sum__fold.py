"""Folds each row into its first column, in the input, and returns that column as a view."""

NEEDS = "cpu"
KIND = "input-alias-view"


def row_sum(x):
    head, tail = x[:, 0], x[:, 1:]
    if tail[0, 0] != 0:
        head += tail.sum(-1)
        tail.zero_()
    return head
