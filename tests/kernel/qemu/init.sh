#!/bin/sh
# PID 1 of a virtual machine that runs tests on another kernel: make the kernel usable, run one script, say how it ended.
# What is written outside of /mnt stays in the machine's memory.
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/run LANG=C.UTF-8 PYTHONDONTWRITEBYTECODE=1 TMPDIR=/run
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs devtmpfs /dev
mkdir -p /dev/pts /dev/shm
mount -t devpts devpts /dev/pts
mount -t tmpfs tmpfs /dev/shm
mount -t tmpfs tmpfs /run

release=$(uname -r)
mkdir -p "/lib/modules/$release"
mount --bind "$(cat /mnt/modules)" "/lib/modules/$release"
while read -r module; do modprobe -q "$module"; done </mnt/wanted-modules

ip link set lo up
sh /mnt/script
echo $? >/mnt/status
sync
echo o >/proc/sysrq-trigger
sleep 10
