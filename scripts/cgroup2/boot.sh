#!/busybox sh
# The first process of the virtual machine: it puts a root together out of the two disks, on which nothing is
# ever written, and goes on there as host.sh. Nothing but BusyBox is there yet.
set -eu
export PATH=/
for name in cat echo insmod mkdir mount switch_root; do
    /busybox ln -s busybox "/$name"
done
mkdir -p /proc /disk /trial /memory /root
mount -t proc proc /proc
mount -t devtmpfs dev /dev
for module in virtio_ring virtio virtio_mmio virtio_blk overlay loop; do
    [ ! -e "/modules/$module.ko" ] || insmod "/modules/$module.ko"
done
mount -t ext4 -o ro,noload /dev/vda /disk
mount -t ext4 -o ro,noload /dev/vdb /trial
mount -t tmpfs tmpfs /memory
mkdir /memory/upper /memory/work
mount -t overlay -o lowerdir=/disk/images/base/rootfs,upperdir=/memory/upper,workdir=/memory/work root /root
mkdir /root/disk /root/trial
mount -o move /disk /root/disk
mount -o move /trial /root/trial
mount -o move /dev /root/dev
mount -o move /proc /root/proc
exec switch_root /root /trial/host.sh
