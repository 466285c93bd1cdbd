"""Plan files run: steps in order, files beside each other, what came out compared with what was expected."""
