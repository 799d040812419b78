"""Counters that host_sys and sys_io ask for, against what the machine itself says."""

from __future__ import annotations

import socket
import threading
import time
from pathlib import Path

import psutil
import pytest

from stepscope.collect.host import asked_counters
from stepscope.collect.host.host_counters import HostCollector
from stepscope.collect.options import Options
from tests.unit.collect.conftest import Recording

from .test_host_counters import UNITS, by_name, sampled, share_over_time

HOST_SYS = {
    "cpu": {"process CPU user": "ms/s", "process CPU system": "ms/s"},
    "mem": {"process memory virtual": "bytes", "process swap": "bytes"},
    "disk": {"process disk read": "bytes/s", "process disk written": "bytes/s"},
    "network": {"network packets in": "/s", "network packets out": "/s"},
    "osrt": {
        "context switches voluntary": "/s",
        "context switches involuntary": "/s",
        "interrupts": "/s",
        "page faults major": "/s",
        "page faults minor": "/s",
    },
}


@pytest.fixture
def options(request: pytest.FixtureRequest) -> Options:
    return Options(counters_hz=50, **request.param)


@pytest.mark.parametrize("options", [{"host_sys": (name,)} for name in HOST_SYS], indirect=True)
def test_each_is_sampled_besides_the_others(recording: Recording, options: Options) -> None:
    collector = HostCollector()
    with recording.of(collector):
        sampled(collector, 2)
    found = {name: rows[0]["unit"] for name, rows in by_name(recording.read()).items()}
    assert found == {**UNITS, **HOST_SYS[options.host_sys[0]]}
    assert "missing" not in collector.describe()


@pytest.mark.parametrize("options", [{"host_sys": ("cpu", "osrt")}], indirect=True)
def test_values_are_those_of_the_process(recording: Recording) -> None:
    # Given: a process that computes and sleeps in turn, so that its main thread gives its core up all the time
    with recording.of(HostCollector()):
        before, user, begin = psutil.Process().num_ctx_switches().voluntary, time.process_time(), time.perf_counter()
        while (seconds := time.perf_counter() - begin) < 0.5:
            sum(range(50_000))
            time.sleep(0.001)
        computed = (time.process_time() - user) / seconds
        switches = psutil.Process().num_ctx_switches().voluntary - before
    samples = by_name(recording.read())
    assert share_over_time(samples["context switches voluntary"]) == pytest.approx(switches / seconds, rel=0.5)
    assert share_over_time(samples["process CPU user"]) == pytest.approx(1000 * computed, rel=0.5)


@pytest.mark.parametrize("options", [{"sys_io": True}], indirect=True)
def test_traffic_of_an_interface_is_counted(recording: Recording) -> None:
    # Given: 8 MB through the loopback interface
    if "lo" not in psutil.net_io_counters(pernic=True):
        pytest.skip("there is no loopback interface called lo")
    payload = bytes(1 << 20)
    with recording.of(HostCollector()), socket.create_server(("127.0.0.1", 0)) as server:
        begin = time.perf_counter()
        with socket.create_connection(server.getsockname()) as sender, server.accept()[0] as receiver:
            reader = threading.Thread(target=_drain, args=(receiver,))
            reader.start()
            for _ in range(8):
                sender.sendall(payload)
                time.sleep(0.05)
            sender.shutdown(socket.SHUT_WR)
            reader.join()
        seconds = time.perf_counter() - begin
    samples = by_name(recording.read())
    assert {"lo received", "lo sent", "lo packets in", "lo packets out", "lo errors", "lo drops"} <= set(samples)
    rate = max(row["value"] for row in samples["lo received"])
    assert rate >= 8e6 / seconds / 2


def _drain(receiver: socket.socket) -> None:
    while receiver.recv(1 << 20):
        pass


def test_ports_of_adapters_are_read_as_the_kernel_lays_them_out(tmp_path: Path) -> None:
    # Given: the files of two ports, as a kernel with InfiniBand has them
    for port, words in (("1", "25"), ("2", "50")):
        counters = tmp_path / "mlx5_0" / "ports" / port / "counters"
        counters.mkdir(parents=True)
        (counters / "port_rcv_data").write_text(f"{words}\n")
        (counters / "port_xmit_data").write_text("1\n")
    readings = {name: value for name, value, _ in asked_counters.adapter_readings(tmp_path)}
    assert readings == {
        "mlx5_0 received": 100,
        "mlx5_0 sent": 4,
        "mlx5_0 port 2 received": 200,
        "mlx5_0 port 2 sent": 4,
    }
