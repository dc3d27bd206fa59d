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

# Tests start other programs, too. Setup goes on without them.
install_for_tests() { # NAME PACKAGE TESTS SIZE MACOS: by apt if root; otherwise one line says how to.
    if ! command -v apt-get >/dev/null || [ "$(id -u)" -ne 0 ]; then
        echo "setup: no $1 found; $3 will fail. To have them pass: sudo apt-get install -y $2 (macOS: brew install $5)" >&2
        return
    fi
    echo "setup: no $1 found, which tests start; installing it by apt ($4)"
    if ! apt_install "$2" && ! { apt-get -qq update >/dev/null && apt_install "$2"; }; then
        echo "setup: apt could not install $1; $3 will fail until it is installed" >&2
    fi
}

apt_install() {
    no_service "$1" && DEBIAN_FRONTEND=noninteractive RUNLEVEL=1 \
        apt-get -qq -o Dpkg::Options::=--force-confold install -y --no-install-recommends "$1" >/dev/null
}

no_service() { # The programs of these packages are wanted, and no server that runs for good.
    local file
    case $1 in
    postgresql)
        file=/etc/postgresql-common/createcluster.conf
        [ -e "$file" ] || { mkdir -p "${file%/*}" && echo "create_main_cluster = false" >"$file"; }
        ;;
    prometheus | redis-server)
        file=/etc/systemd/system/$1.service
        [ -e "$file" ] || { mkdir -p "${file%/*}" && ln -s /dev/null "$file"; }
        ;;
    esac
}

# Where tests/databases/postgres_process.py looks.
if ! command -v initdb >/dev/null && ! ls /usr/lib/postgresql/*/bin/initdb >/dev/null 2>&1; then
    install_for_tests PostgreSQL postgresql "its tests (tests/databases)" "20 MB to download, 70 MB on disk" postgresql
fi
if ! command -v redis-server >/dev/null; then
    install_for_tests Redis redis-server "its tests (tests/redis_keys)" "1 MB to download, 6 MB on disk" redis
fi
if ! command -v chromium >/dev/null && ! command -v google-chrome >/dev/null; then
    install_for_tests Chromium chromium "the tests of the live page (tests/page)" \
        "100 MB to download, 400 MB on disk" "--cask google-chrome"
fi
if ! command -v prometheus >/dev/null || ! command -v promtool >/dev/null; then
    install_for_tests Prometheus prometheus "the tests of the metrics (tests/page)" \
        "20 MB to download, 100 MB on disk" prometheus
fi

exec "$python" scripts/setup.py
