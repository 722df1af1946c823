# SPDX-License-Identifier: Apache-2.0
"""The configuration files of the Durango paper, as its listings 6 and 7 print them, and models for them."""

from __future__ import annotations

from pathlib import Path

LISTING_6 = """ASPEN_PARAMS
{
    debug_output="1";
    network_conf_file="simplenet.conf";
    network_traffic_pattern="random";
    num_rounds="2";
    aspen_mach_path=".models/
        machine/BigTestRig.aspen";
    socket_choice000="amd_830";
    socket_choice001="amd_HD5770";
    aspen_app_path000=".models/matmul/
        matmul.aspen";
    aspen_app_path001=".models/matmul/
        matmul.aspen";
}

SERVER_PINGS
{
    num_reqs="128";
    payload_sz="1024";
}
"""

LISTING_7 = """LPGROUPS
{
    # simplenet has a set of servers, each with
    # point-to-point access to each other
    ASPEN_SERVERS
    {
        # required: number of times to repeat
        # the following key-value pairs
        repetitions="4096";
        # LP types
        server="1";
        modelnet_simplenet="1";
    }
}
# Network Params:
PARAMS
{
    # ROSS-specific parameters:
    # - message_size:
    message_size="340";
    pe_mem_factor="512";
    # model-net-specific parameters:
    # - individual packet sizes for network
    #   operations where each "packet" is
    #   represented by an event
    # - independent of underlying network being
    #   used
    packet_size="512";
    # - order that network types will be presented
    #   to the user in
    #   model_net_set_params. In this example,
    #   we're only using a single
    #   network topology
    modelnet_order=( "simplenet" );
    # - packet scheduling algorithm
    modelnet_scheduler="fcfs";
    # - simplenet-specific parameters
    net_startup_ns="1.5";
    net_bw_mbps="20000";
}
"""

RIG = """machine BigTestRig { node [4] box  interconnect wire }
node box { socket [1] amd_830  socket [1] amd_HD5770 }
socket amd_830 { core [4] k10 }
socket amd_HD5770 { core [800] lane }
core k10 { resource flops(n) [n / (2.8 * giga)] with simd [base / 4] }
core lane { resource flops(n) [n / (0.85 * giga)] }
interconnect wire { resource messages(b) [micro + b / giga] }
"""

MATMUL = """model matmul {
  param n = 512
  kernel main { map [n] { execute { flops [2 * n^2] as simd } } }
}
"""


def rounds_in(folder: Path, primary: str = LISTING_6, network: str = LISTING_7) -> Path:
    """The primary file, with all that it names beside it."""
    for name, text in (
        ("rounds.conf", primary), ("simplenet.conf", network), (".models/machine/BigTestRig.aspen", RIG),
        (".models/matmul/matmul.aspen", MATMUL),
    ):  # fmt: skip
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder / "rounds.conf"
