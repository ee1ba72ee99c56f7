"""Reads what GPU tools print as a report: a file's text in, the text with each report in sentences and its evidence out.

DCGM's diagnostics, health, links and fields, nvidia-smi's pages and queries, and metrics of exporters say with names and
values in places what no line says alone. A report's lines are replaced, line by line, by sentences in the driver's and
DCGM's own words, which the rules know, or by nothing where they say nothing; a failed diagnostic becomes evidence with
DCGM's code. It never touches text that is no report, nor decides who is to be trusted: that goes by the file's source.
"""
