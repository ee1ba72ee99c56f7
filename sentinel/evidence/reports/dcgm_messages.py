"""DCGM's messages and their error codes, for outputs that carry no code: text tables, and JSON before 3.1."""

from __future__ import annotations

import re

# Code and how its message is worded (NVIDIA/DCGM: dcgmlib/dcgm_errors.h, 2.4 to 4.6). Compared without blanks, since a
# table breaks a message anywhere.
_MESSAGES = (
    (3, r"Detected more than \d+ PCIe replays per minute for GPU"),
    (4, r"Detected \d+ volatile double-bit ECC error"),
    (5, r"More than \d+ single-bit ECC error"),
    (6, r"A pending retired page has been detected in GPU"),
    (8, r"retired pages due to DBEs have been detected"),
    (7, r"or more retired pages have been detected in GPU"),
    (9, r"A corrupt InfoROM has been detected"),
    (10, r"(?:clocks event|clock throttling) due to thermal violation"),
    (12, r"(?:clocks event|clock throttling) due to power violation"),
    (11, r"Cannot reliably read the power usage"),
    (71, r"NvLink errors on GPU \d+'s NVLink \(should be 0\)"),
    (70, r"NvLink errors found occuring per second on GPU"),
    (13, r"NvLink errors on GPU \d+'s NVLink which exceeds"),
    (14, r"NvLink link \d+ is currently down"),
    (18, r"File \S+ could not be accessed directly"),
    (20, r"number of devices NVML returns is different"),
    (22, r"Cannot open library"),
    (23, r"Found driver on the denylist|blacklisted driver"),
    (25, r"processes with graphics contexts open"),
    (28, r"Found CUDA performance-limiting environment variable"),
    (29, r"Persistence mode for GPU \d+ is (?:currently )?disabled"),
    (30, r"Bandwidth of GPU \d+ in direction"),
    (31, r"Latency type \S+ of GPU \d+ value"),
    (40, r"There were thermal violations totaling"),
    (41, r"Thermal violations totaling"),
    (45, r"is running at PCI link generation"),
    (46, r"is running at PCI link width"),
    (50, r"Max stress level of [\d.]+ did not"),
    (52, r"Found [1-9]\d* faulty memory elements on GPU"),
    (55, r"because ECC is not enabled on GPU|ECC memory on GPU \d+ is not currently active"),
    (56, r"Couldn't allocate at least [\d.]+% of GPU memory"),
    (57, r"CUDA APIs have indicated that a double-bit ECC error"),
    (58, r"A memory mismatch was detected on GPU"),
    (62, r"only achieved a memory bandwidth of"),
    (63, r"Max power of [\d.]+ did not reach desired power minimum"),
    (65, r"API call \S+ failed for GPU \d+"),
    (64, r"API call \S+ failed"),
    (51, r"Error using CUDA API"),
    (72, r"Enforced power limit on GPU \d+ set to"),
    (79, r"miscompare failure in the L1 cache"),
    (80, r"had uncorrectable memory errors and row remapping failed"),
    (81, r"had an uncontained error"),
    (83, r"Pending page retirements together with a DBE"),
    (84, r"had uncorrectable memory errors and \d+ rows were remapped"),
    (85, r"ha[ds] (?:uncorrectable )?memory errors and row remappings are pending"),
    (115, r"was unsuccessfully written to by GPU \d+ over NVLink"),
    (113, r"was unsuccessfully written to by GPU \d+ over PCIe"),
    (86, r"was unsuccessfully written to by GPU"),
    (116, r"unsuccessfully wrote data to GPU \d+ over NVLink"),
    (114, r"unsuccessfully wrote data to GPU \d+ over PCIe"),
    (87, r"unsuccessfully wrote data to GPU"),
    (98, r"host-side PCIe replay violation"),
    (101, r"Detected XID \d+ for GPU"),
    (104, r"Detected [1-9]\d* \S*pcie_replay\S* for GPU"),
    (103, r"Detected [1-9]\d* \S*(?:ecc_dbe|dbe_vol)\S* for GPU"),
    (102, r"Detected [1-9]\d* \S*(?:ecc_sbe|sbe_vol)\S* for GPU"),
    (111, r"Found [1-9]\d* NaN-value memory elements on GPU"),
    (118, r"SRAM Threshold Count exceeded on GPU"),
    (120, r"GPU \d+ has fallen off the bus"),
    (132, r"exceeded uncorrectable row remap limit"),
    (125, r"Recovery action: \d+ \(GPU_RESET\)"),
    (126, r"Recovery action: \d+ \(NODE_REBOOT\)"),
    (127, r"Recovery action: \d+ \(DRAIN_P2P\)"),
    (128, r"Recovery action: \d+ \(DRAIN_AND_RESET\)"),
)
_READY = tuple((code, re.compile(pattern.replace(" ", ""))) for code, pattern in _MESSAGES)
API_FAILED = frozenset({51, 64, 65, 66})  # what failed is in CUDA's own words behind it
MOST = 2000  # characters of a message that are looked at


def code_of(message: str) -> int | None:
    """DCGM's error code of a message; None where it is not known."""
    text = re.sub(r"\s", "", message[:MOST])
    return next((code for code, pattern in _READY if pattern.search(text)), None)
