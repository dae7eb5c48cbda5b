#!/usr/bin/env bash
# Tries to break the limits of sandboxes on a host that has control groups of version 2 and no others, as most
# have today: a virtual machine under software emulation, without network, whose root is the base image.
# Arguments are words of the trials' names; only those are run then. CGROUP2_KERNEL names another version of Debian's
# linux-image-cloud-amd64 than the newest. Needs a built bellglass with an image.
set -euo pipefail
cd "$(dirname "$0")/.."

bellglass=${BELLGLASS:-target/release/bellglass}
deadline=${CGROUP2_DEADLINE:-1800}
kept=$PWD/target/cgroup2
parts=$PWD/scripts/cgroup2

fail() {
    printf 'cgroup2: %s\n' "$1" >&2
    exit 1
}

[ -x "$bellglass" ] || fail "there is no $bellglass; run 'make test-cgroup2'"
[ "$(uname -m)" = x86_64 ] || fail 'the virtual machine is one of x86-64, and so must this host be'
rootfs=$("$bellglass" image inspect base --json | jq --raw-output .rootfs)
[ -d "$rootfs" ] || fail "there is no image; run '$bellglass image build'"

as_root() { if [ "$(id -u)" = 0 ]; then "$@"; else sudo "$@"; fi; }

# An image of a plain user has files of subordinate ids, which are root's and others' only in a user namespace.
as_owner() {
    if [ "$(id -u)" = 0 ]; then "$@"; else unshare --map-root-user --map-auto -- "$@"; fi
}

has() { command -v "$1" >/dev/null || [ -x "/usr/sbin/$1" ]; }

install_missing() {
    local missing=() log backports
    has qemu-system-x86_64 || missing+=(qemu-system-x86)
    has mkfs.ext4 || missing+=(e2fsprogs)
    has xz || missing+=(xz-utils)
    [ ${#missing[@]} -gt 0 ] || return 0
    printf 'cgroup2: installing %s\n' "${missing[*]}"
    log=$(mktemp)
    as_root apt-get update --quiet >"$log" 2>&1 || true
    get() { as_root env DEBIAN_FRONTEND=noninteractive apt-get install --quiet --yes --no-install-recommends "$@"; }
    # Where other parts of QEMU came from backports, those of the distribution itself do not fit to them.
    backports=$(. /etc/os-release && printf '%s-backports' "${VERSION_CODENAME:-}")
    get "${missing[@]}" >>"$log" 2>&1 || get --target-release "$backports" "${missing[@]}" >>"$log" 2>&1 || {
        tail -n 15 "$log" >&2
        fail "apt could not install: ${missing[*]}"
    }
    rm -f "$log"
}

# The newest kernel that apt offers, and BusyBox for the moment before there is a root. Both are unpacked beside
# the build; nothing of them is installed.
fetch_kernel() {
    local version package folder
    version=${CGROUP2_KERNEL:-$(apt-cache madison linux-image-cloud-amd64 | awk '{ print $3 }' | sort --version-sort | tail -n 1)}
    if [ -z "$version" ]; then
        [ -e "$kept/kernel/complete" ] && return
        fail "apt knows no linux-image-cloud-amd64, Debian's kernel for virtual machines"
    fi
    [ "$(cat "$kept/kernel/complete" 2>/dev/null)" != "$version" ] || return 0
    printf 'cgroup2: fetching Linux %s\n' "$version"
    package=$(apt-cache depends "linux-image-cloud-amd64=$version" | awk '/Depends:/ { print $2; exit }')
    folder=$kept/kernel
    rm -rf "$folder"
    mkdir -p "$folder/unpacked" "$folder/ram/modules" "$folder/ram/dev"
    (cd "$folder" && apt-get download --quiet "$package=$version" busybox-static >download.log 2>&1) || {
        cat "$folder/download.log" >&2
        fail "apt could not fetch $package"
    }
    for archive in "$folder"/*.deb; do dpkg-deb --extract "$archive" "$folder/unpacked"; done
    cp "$folder"/unpacked/boot/vmlinuz-* "$folder/vmlinuz"
    install -m 755 "$(find "$folder/unpacked" -name busybox -type f -perm -u+x)" "$folder/ram/busybox"
    local module file
    for module in drivers/virtio/virtio drivers/virtio/virtio_ring drivers/virtio/virtio_mmio drivers/block/virtio_blk \
        drivers/block/loop fs/overlayfs/overlay; do
        file=$(echo "$folder"/unpacked/lib/modules/*/kernel/$module.ko*)
        # What is no module of this kernel is built into it.
        [ -e "$file" ] || continue
        case $file in
        *.xz) xz --decompress --stdout "$file" ;;
        *) cat "$file" ;;
        esac >"$folder/ram/modules/${module##*/}.ko"
    done
    rm -rf "$folder/unpacked" "$folder"/*.deb
    printf '%s\n' "$version" >"$folder/complete"
}

# A disk with the image twice: as root has it, and as a plain user has it who can give a sandbox no id but its own.
# What no trial needs is left out. It is the machine's root too.
make_disk() {
    local name folder
    name=$(basename "$(dirname "$rootfs")")
    disk=$kept/$name.ext4
    [ ! -e "$disk" ] || return 0
    printf 'cgroup2: making a disk of %s\n' "$name"
    folder=$kept/disk
    as_owner bash -euo pipefail -c '
        folder=$1 rootfs=$2 name=$3 disk=$4
        rm -rf "$folder" "${disk%/*}"/*.ext4*
        for place in images images-of-user; do
            mkdir -p "$folder/$place/$name/rootfs"
            tar -C "$rootfs" --exclude="./usr/local/*" --exclude=./usr/share --exclude=./usr/lib/git-core \
                --exclude="./usr/lib/gcc*" --exclude="./usr/lib/*/perl" --exclude=./var/lib --exclude="lib*san.*" \
                --exclude="*.a" --exclude="./usr/include" -cf - . |
                tar -C "$folder/$place/$name/rootfs" -xf -
            cp "$rootfs/../manifest.json" "$folder/$place/$name/"
            ln -s "$name" "$folder/$place/base"
        done
        chown -hR 1000:1000 "$folder/images-of-user"
        size=$(du --summarize --block-size=1M "$folder" | cut -f 1)
        truncate --size="$((size * 5 / 4 + 64))M" "$disk.new"
        PATH=$PATH:/usr/sbin mkfs.ext4 -q -F -O ^has_journal -m 0 -d "$folder" "$disk.new"
        rm -rf "$folder"
        mv "$disk.new" "$disk"' bash "$folder" "$rootfs" "$name" "$disk"
}

install_missing
mkdir -p "$kept"
fetch_kernel
make_disk

folder=$(mktemp -d)
machine=
finish() {
    [ -z "$machine" ] || kill "$machine" 2>/dev/null || true
    rm -rf "$folder"
}
trap finish EXIT
trap 'exit 130' INT TERM

mkdir "$folder/trial"
strip --strip-all -o "$folder/trial/bellglass" "$bellglass" 2>/dev/null || cp "$bellglass" "$folder/trial/bellglass"
cp "$parts/host.sh" "$parts"/*.py "$kept/kernel/ram/busybox" "$folder/trial/"
printf '%s\n' "$@" >"$folder/trial/wanted"
truncate --size="$(($(du --summarize --block-size=1M "$folder/trial" | cut -f 1) * 5 / 4 + 16))M" "$folder/trial.ext4"
PATH=$PATH:/usr/sbin mkfs.ext4 -q -F -O ^has_journal -m 0 -d "$folder/trial" "$folder/trial.ext4"
cp -r "$kept/kernel/ram" "$folder/ram"
cp "$parts/boot.sh" "$folder/ram/init"
(cd "$folder/ram" && find . | ./busybox cpio --quiet -o -H newc >../ram.cpio)

# How fast the clock is, the machine would find out by counting, which goes wrong where it has to wait for a
# processor in the middle of it.
khz=$(awk -F: '/^cpu MHz/ { printf "%d", $2 * 1000; exit }' /proc/cpuinfo)
: >"$folder/said"
timeout --signal=KILL "$deadline" qemu-system-x86_64 -machine microvm,acpi=on -accel tcg,thread=multi -cpu max -smp 2 -m 3G \
    -nodefaults -no-user-config -no-reboot -display none -serial stdio \
    -kernel "$kept/kernel/vmlinuz" -initrd "$folder/ram.cpio" \
    -append "console=ttyS0 loglevel=1 cgroup_no_v1=all no_timer_check tsc_early_khz=$khz lpj=$((khz * 4)) reboot=t panic=-1" \
    -drive "id=disk,file=$disk,format=raw,if=none,readonly=on" -device virtio-blk-device,drive=disk \
    -drive "id=trial,file=$folder/trial.ext4,format=raw,if=none,readonly=on" -device virtio-blk-device,drive=trial \
    </dev/null >"$folder/said" 2>&1 &
machine=$!
tail --pid="$machine" --follow --lines=+1 "$folder/said" | sed --unbuffered 's/\r$//; /^\[ .* sysrq: /d' || true
wait "$machine" 2>/dev/null || fail "the machine was not done after $deadline s, or did not start"
machine=
tr -d '\r' <"$folder/said" | grep --quiet '^trials ended with 0$' || fail 'not everything holds'
