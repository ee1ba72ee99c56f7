"""Checkpoints: formats, validity, inventory, choice.

    listing(root, tier, host) -> [Part]        what one host sees (run it as the job's user, on that host)
    join(listings) -> [Candidate]              the hosts put together
    validate(path, level) -> Validity          one path
    choose(candidates, ...) -> Decision        pure: which one, at what cost, and why not the others

Nothing here needs torch, imports what a checkpoint names, follows a link or reads more than it was asked to.
"""
