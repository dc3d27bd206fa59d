#!/usr/bin/env bash
# Finds a Python and a Java that the project runs on (or installs them by apt when root), and leaves the rest to setup.py.
# Written for bash 3.2, the one that macOS has.
set -euo pipefail
cd "$(dirname "$0")/.."

# An activated .venv must not be the Python that makes .venv.
if [ -n "${VIRTUAL_ENV:-}" ]; then
    PATH=${PATH//"$VIRTUAL_ENV/bin:"/}
fi

suits() { # Versions outside of 3.11 to 3.14 are untried: the pinned packages have no wheels for them.
    "$1" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 14))' >/dev/null 2>&1
}

find_python() {
    local candidate
    if [ -n "${PYTHON:-}" ]; then
        set -- "$PYTHON"
    else
        set -- python3 python3.13 python3.12 python3.11 python3.14
    fi
    for candidate in "$@"; do
        if suits "$candidate"; then
            command -v "$candidate"
            return
        fi
    done
    return 1
}

apt_package() { # The newest Python with a venv module that this system's apt offers.
    local version
    for version in 3.13 3.12 3.11 3.14; do
        if apt-cache show "python$version-venv" >/dev/null 2>&1; then
            echo "python$version-venv"
            return
        fi
    done
    return 1
}

if ! python=$(find_python); then
    if [ -n "${PYTHON:-}" ]; then
        echo "setup: PYTHON=$PYTHON is not a Python 3.11 to 3.14; name another, or leave PYTHON unset" >&2
        exit 1
    fi
    if ! command -v apt-get >/dev/null; then
        echo "setup: no Python 3.11 to 3.14 found. Install one (macOS: brew install python@3.13), then: make setup" >&2
        exit 1
    fi
    if [ "$(id -u)" -ne 0 ]; then
        echo "setup: no Python 3.11 to 3.14 found. Run this, then make setup again:" >&2
        echo "  sudo apt-get update && sudo apt-get install -y $(apt_package || echo python3.13-venv)" >&2
        exit 1
    fi
    echo "setup: no Python 3.11 to 3.14 found, installing one by apt (about 50 MB, 1 minute)"
    apt-get update
    if ! package=$(apt_package); then
        echo "setup: apt offers no Python 3.11 to 3.14; install one by hand and run: PYTHON=/path/to/python3 make setup" >&2
        exit 1
    fi
    DEBIAN_FRONTEND=noninteractive apt-get install -y "$package"
    if ! python=$(find_python); then
        echo "setup: apt installed $package, yet no Python 3.11 to 3.14 is on PATH; run: PYTHON=/path/to/python3 make setup" >&2
        exit 1
    fi
fi

# Java is for Spark, which audits what runs leave behind: tests and the demo have it do so.
java_suits() { # Looks where PySpark will: JAVA_HOME if it is set, else PATH.
    local java version
    java=${JAVA_HOME:+$JAVA_HOME/bin/}java
    version=$("$java" -version 2>&1 | sed -n 's/.*version "\(1\.\)\{0,1\}\([0-9]*\).*/\2/p') || return 1
    [ "${version:-0}" -ge 17 ]
}

java_package() { # The first of those that Spark is known to run on which this system's apt offers.
    local version
    for version in 17 21 25; do
        if apt-cache show "openjdk-$version-jre-headless" >/dev/null 2>&1; then
            echo "openjdk-$version-jre-headless"
            return
        fi
    done
    return 1
}

if ! java_suits; then
    if [ -n "${JAVA_HOME:-}" ]; then
        echo "setup: JAVA_HOME=$JAVA_HOME is no Java 17 or newer, which Spark needs; name another, or leave JAVA_HOME unset" >&2
        exit 1
    fi
    if ! command -v apt-get >/dev/null; then
        echo "setup: no Java 17 or newer found, which Spark needs. Install one (macOS: brew install openjdk@17) and let PATH or JAVA_HOME name it, then: make setup" >&2
        exit 1
    fi
    if [ "$(id -u)" -ne 0 ]; then
        echo "setup: no Java 17 or newer found, which Spark needs. Run this, then make setup again:" >&2
        echo "  sudo apt-get update && sudo apt-get install -y $(java_package || echo openjdk-17-jre-headless)" >&2
        exit 1
    fi
    echo "setup: no Java 17 or newer found, which Spark needs; installing one by apt (about 50 MB to download, 200 MB on disk, 1 minute)"
    apt-get update
    if ! package=$(java_package); then
        echo "setup: apt offers no Java 17 or newer; install one by hand, let JAVA_HOME name it, then: make setup" >&2
        exit 1
    fi
    DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends "$package"
    if ! java_suits; then
        echo "setup: apt installed $package, yet no Java 17 or newer is on PATH; let JAVA_HOME name it, then: make setup" >&2
        exit 1
    fi
fi

# PostgreSQL is for tests alone, which start a server of their own: setup goes on without it.
postgres_is_there() { # Looks where tests/databases/postgres_process.py will.
    command -v initdb >/dev/null || ls /usr/lib/postgresql/*/bin/initdb >/dev/null 2>&1
}

if ! postgres_is_there; then
    if command -v apt-get >/dev/null && [ "$(id -u)" -eq 0 ]; then
        echo "setup: no PostgreSQL found, which tests start; installing it by apt (about 20 MB to download, 70 MB on disk, half a minute)"
        apt-cache show postgresql >/dev/null 2>&1 || apt-get update
        # Its programs are wanted, and no server that runs for good.
        if [ ! -e /etc/postgresql-common/createcluster.conf ]; then
            mkdir -p /etc/postgresql-common
            echo "create_main_cluster = false" >/etc/postgresql-common/createcluster.conf
        fi
        if ! DEBIAN_FRONTEND=noninteractive apt-get -o Dpkg::Options::=--force-confold install -y --no-install-recommends postgresql; then
            echo "setup: apt could not install PostgreSQL; its tests (tests/databases) will fail until it is installed" >&2
        fi
    else
        echo "setup: no PostgreSQL found; its tests (tests/databases) will fail. To have them: sudo apt-get install -y postgresql (macOS: brew install postgresql)" >&2
    fi
fi

# Chromium is for the tests of the live page alone: setup goes on without it.
if ! command -v chromium >/dev/null && ! command -v google-chrome >/dev/null; then
    if command -v apt-get >/dev/null && [ "$(id -u)" -eq 0 ]; then
        echo "setup: no Chromium found, in which tests open the live page; installing it by apt (about 100 MB to download, 400 MB on disk, 1 minute)"
        apt-cache show chromium >/dev/null 2>&1 || apt-get update
        if ! DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends chromium; then
            echo "setup: apt could not install Chromium; the tests of the live page (tests/page) will fail until it is installed" >&2
        fi
    else
        echo "setup: no Chromium found; the tests of the live page (tests/page) will fail. To have them: sudo apt-get install -y chromium (macOS: brew install --cask google-chrome)" >&2
    fi
fi

# Prometheus is for the test of the metrics alone: setup goes on without it.
if ! command -v promtool >/dev/null; then
    if command -v apt-get >/dev/null && [ "$(id -u)" -eq 0 ]; then
        echo "setup: no Prometheus found, which a test has scrape a run; installing it by apt (about 20 MB to download, 100 MB on disk, half a minute)"
        apt-cache show prometheus >/dev/null 2>&1 || apt-get update
        # Its programs are wanted, and no server that runs for good.
        mkdir -p /etc/systemd/system
        [ -e /etc/systemd/system/prometheus.service ] || ln -sf /dev/null /etc/systemd/system/prometheus.service
        if ! RUNLEVEL=1 DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends prometheus; then
            echo "setup: apt could not install Prometheus; the test of the metrics (tests/page) will fail until it is installed" >&2
        fi
    else
        echo "setup: no Prometheus found; the test of the metrics (tests/page) will fail. To have it: sudo apt-get install -y prometheus (macOS: brew install prometheus)" >&2
    fi
fi

exec "$python" scripts/setup.py
