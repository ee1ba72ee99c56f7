"""Commands that need no daemon: classify, hang, explore, rules, config."""
