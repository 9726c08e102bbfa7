#!/bin/sh
# PID 1 of the User-mode Linux the ipvs tests run in: make the kernel usable, run one command, say how it ended.
# POINTSMAN_RUN, POINTSMAN_STATUS and POINTSMAN_CHECKOUT arrive from the kernel command line; what is written to /run and /tmp is lost.
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/run LANG=C.UTF-8 PYTHONDONTWRITEBYTECODE=1
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t tmpfs tmpfs /run
# A checkout below /tmp must stay visible; temporary files go to /run then.
case $POINTSMAN_CHECKOUT in
/tmp/*) export TMPDIR=/run ;;
*) mount -t tmpfs tmpfs /tmp ;;
esac

release=$(uname -r)
mkdir -p "/run/modules/lib/modules"
ln -s "/usr/lib/uml/modules/$release" "/run/modules/lib/modules/$release"
# Built-in ones and those this kernel lacks fail one by one; preflight inside says what is really missing.
while read -r module; do
    modprobe -d /run/modules "$module" 2>/dev/null
done <"$POINTSMAN_CHECKOUT/kernel-modules"

# iptables asks for modules by names that no file has; without a loader that costs nothing instead of a process.
echo "" > /proc/sys/kernel/modprobe

ip link set lo up
sh "$POINTSMAN_RUN"
echo $? > "$POINTSMAN_STATUS"
sync
echo o > /proc/sysrq-trigger
sleep 10
