"""Groups evidence into incidents: one failure each, with its job and nodes, GPU owners and rank placement.

Input: evidence, open incidents, the cluster view. Output: new, extended or merged incidents. Causes are judged elsewhere.
Pure.
"""
