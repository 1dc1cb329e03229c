"""Options: numbers that can't be, files that are not there, and words that exclude each other."""

import pytest
from command_line import run


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("metrics http://127.0.0.1:1 --seconds nan", "--seconds is nan: write a number from 0"),
        ("metrics a b --seconds inf", "--seconds is inf"),
        ("metrics a b --power nan", "--power is nan"),
        ("metrics a b --clock -3", "--clock is -3"),
        ("metrics a b --release 99", "99"),
        ("metrics 127.0.0.1:8000", "write http://127.0.0.1:8000"),
        ("metrics /dev/null no-such-file", "no-such-file can't be read"),
        ("advise 127.0.0.1:8000", "write http://127.0.0.1:8000"),
        ("advise http://127.0.0.1:1 a.json", "http://127.0.0.1:1 can't be mixed with files"),
        ("advise http://127.0.0.1:1 --seconds 1e30", "--seconds is 1e+30"),
        ("advise http://127.0.0.1:1 --draft-cost nan", "--draft-cost is nan"),
        ("bench http://127.0.0.1:1 --rate nan", "rates from 0.01, to 10,000"),
        ("bench http://127.0.0.1:1 --rate inf", "rates from 0.01, to 10,000"),
        ("bench http://127.0.0.1:1 --concurrency 99999999999", "concurrencies from 1"),
        ("bench http://127.0.0.1:1 --requests 99999999999", "a million at most"),
        ("bench http://127.0.0.1:1 --seconds nan", "--seconds is nan"),
        ("bench http://127.0.0.1:1 --timeout inf", "--timeout is inf"),
        ("bench http://127.0.0.1:1 --timeout 0", "--timeout is 0: write a number from 0.1"),
        ("serve gpt-oss-20b --dry-run --deadline nan", "--deadline is nan"),
        ("serve gpt-oss-20b --dry-run --deadline -1", "--deadline is -1"),
        ("serve gpt-oss-20b --dry-run --floor x", "'x' is not a size"),
        ("serve gpt-oss-20b --dry-run --floor -8GiB", "'-8GiB' is not a size"),
        ("serve gpt-oss-20b --dry-run --host x", "--host is 'x': write ssh://"),
        ("bench http://127.0.0.1:1 --with x", "Unknown tool 'x'. --with accepts: sparkbook, vllm"),
        ("convert gpt-oss-20b --to x", "Unknown format 'x'. --to accepts: docker, compose"),
        ("releases show 0.32.0 --category x", "Unknown category 'x'. --category accepts: options"),
        ("book --target x", "Unknown target 'x'. --target accepts: auto, plan"),
        ("upgrade gpt-oss-20b --to a:b --way x", "--way is 'x': choose auto, together, swap"),
        ("upgrade gpt-oss-20b --to http://x", "--to is 'http://x': write an image"),
        ("upgrade gpt-oss-20b --to a:b --slower 101", "--slower is 101"),
        ("upgrade embedded/tiny-dense --to a:b", "has no image to change"),
        ("monitor prometheus --server http://", "a server has no name: give HOST:PORT"),
        ("monitor up --dry-run --server spark", "'spark' has no port: give HOST:PORT"),
        ("monitor up --dry-run --server spark:x", "'http://spark:x' is no server"),
        ("monitor up --dry-run --grafana-port 9090", "need three different ports"),
        ("monitor up --dry-run --key-file x --server spark:1", "the key would cross the network"),
        ("monitor up --dry-run --key-file no-such", "no-such"),
        ("plan gpt-oss-20b --fabric x.json", "--fabric needs --nodes"),
        ("plan gpt-oss-20b --nodes 2 --explain", "--nodes can't be used with --log"),
        ("check gpt-oss-20b --probes x.json", "--probes can't be used with a recipe or --run"),
        ("logs x --follow --diagnose", "--diagnose can't be used with --follow"),
        ("logs x --json", "--json needs --diagnose"),
        ("record", "name a new folder or a new .tar.gz"),
        ("record --kernels --log x", "--kernels takes no --log, --url, --metrics or --no-host"),
        ("record --kernels --no-host", "--kernels takes no --log"),
        ("serve gpt-oss-20b --layout tp=2", "belong to: sparkbook cluster serve"),
        ("metrics /dev/null", "/dev/null is one scrape, and two are needed"),
        ("plan gpt-oss-20b --fraction 0", "gpu-memory-utilization is 0"),
        ("plan gpt-oss-20b --calibration no-such.json", "No calibration file no-such.json"),
    ],
)
def test_no_option_is_ignored_and_no_number_out_of_bounds_gets_far(line: str, told: str) -> None:
    """Nothing listens on these ports and no file is there: what is wrong with an option is said
    before anything is asked.
    """
    assert told in run(*line.split(), check=2).stderr
