#!/bin/bash
# The virtual machine's root as an ordinary host has it: control groups of version 2 and no others, in the
# order that systemd gives them. It runs the trials, and ends the machine after them.
set -u
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:/opt/busybox HOME=/root LANG=C.UTF-8

# An image for sandboxes has no programs that mount.
mkdir /opt/busybox
/trial/busybox --install -s /opt/busybox

mount -t sysfs sys /sys
mount -t cgroup2 -o nsdelegate,memory_recursiveprot cgroup2 /sys/fs/cgroup
mount -t tmpfs -o mode=755 run /run
mount -t tmpfs -o mode=1777 tmp /tmp
mkdir -p /dev/pts /dev/shm
mount -t devpts -o ptmxmode=666,gid=5,mode=620 pts /dev/pts
mount -t tmpfs -o mode=1777 shm /dev/shm
ln -sfn /proc/self/fd /dev/fd
mount --make-rshared /
ip link set lo up

# As systemd has it for its units: processes are in leaves only, and a slice hands on the controllers that its
# units need. That is all of them where a unit is delegated, else those by which is counted: memory and pids.
group() {
    local path=/sys/fs/cgroup name controller
    for name in ${1//\// }; do
        for controller in $2; do
            echo "+$controller" >"$path/cgroup.subtree_control"
        done
        path=$path/$name
        mkdir -p "$path"
    done
}
echo '+cpu' >/sys/fs/cgroup/cgroup.subtree_control
group init.scope 'memory pids'
echo $$ >/sys/fs/cgroup/init.scope/cgroup.procs
group system.slice/bellglass.service 'cpu memory pids'
group plain.slice/plain.service 'memory pids'
group user.slice/user-0.slice/session-1.scope 'memory pids'
group user.slice/user-1000.slice/session-2.scope 'cpu memory pids'
group user.slice/user-1000.slice/user@1000.service/app.slice/first.scope 'cpu memory pids'
group user.slice/user-1000.slice/user@1000.service/background.slice/first.scope 'memory pids'
# `user@.service` gives its user these files, and all that is made below.
delegated='/sys/fs/cgroup/user.slice/user-1000.slice/user@1000.service'
find "$delegated" \( -type d -o -name cgroup.procs -o -name cgroup.threads -o -name cgroup.subtree_control \) \
    -exec chown 1000:1000 {} +

python3 /trial/trials.py
echo "trials ended with $?"
sync
# With no firmware there is nothing that could turn the machine off; it resets, which ends it.
echo b >/proc/sysrq-trigger
