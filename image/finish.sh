#!/bin/sh
# Turns a freshly installed Debian tree into a sandbox image. Runs as root inside that tree, in
# namespaces of its own and without network.
#
# Given by the builder: /mnt holds files to lay over the tree, /media holds Python wheels, and
# the environment says who the sandbox's user is.
set -eu
umask 022

cp -R --preserve=mode,timestamps,links --no-target-directory /mnt /

groupadd --gid "$USER_ID" "$USER_NAME"
useradd --uid "$USER_ID" --gid "$USER_ID" --home-dir "$USER_HOME" --shell "$USER_SHELL" \
    --no-log-init "$USER_NAME"
mkdir -p "$USER_HOME" /workspace
# The home may already hold files of the recipe, in which case useradd would not add these.
cp -R --no-clobber --no-target-directory /etc/skel "$USER_HOME"
chown -R "$USER_ID:$USER_ID" "$USER_HOME" /workspace

if [ -n "$PYTHON_VERSION" ]; then
    # There is one Python here and nobody else manages its packages.
    rm -f "/usr/lib/python$PYTHON_VERSION/EXTERNALLY-MANAGED"
    set -- /media/*.whl
    if [ -e "$1" ]; then
        python3 -m pip install --quiet --no-index --no-deps --no-cache-dir --no-compile \
            --root-user-action=ignore "$@"
    fi
    # Imports are several times faster with compiled files, and a sandbox cannot keep its own.
    for library in "/usr/lib/python$PYTHON_VERSION" /usr/lib/python3 \
        "/usr/local/lib/python$PYTHON_VERSION"; do
        [ ! -d "$library" ] || python3 -m compileall -q -j 0 "$library" >/dev/null || true
    done
fi

# In a sandbox there is nobody to protect from its user, who installs with npm and pip as usual.
chown -R "$USER_ID:$USER_ID" /usr/local

# Fonts whose folder was changed after it was read would be read anew by the first program of every sandbox.
if command -v fc-cache >/dev/null; then
    fc-cache --system-only
fi

# What the X server would have compiled at every start (see the recipe).
ready=/usr/lib/bellglass
if [ -e "$ready/ready-keymap" ]; then
    xkbcomp -w 0 -R/usr/share/X11/xkb -xkm "$ready/keymap" "$ready/keymap.xkm"
    mv /usr/bin/xkbcomp "$ready/xkbcomp"
    install -m 755 "$ready/ready-keymap" /usr/bin/xkbcomp
    rm "$ready/ready-keymap"
fi

# Nothing of the host that built the image stays in it.
echo sandbox >/etc/hostname
printf '127.0.0.1 localhost sandbox\n::1 localhost sandbox\n' >/etc/hosts
: >/etc/resolv.conf
echo '# The image is complete; a sandbox installs no Debian packages.' >/etc/apt/sources.list
rm -f /etc/dpkg/dpkg.cfg.d/99mmdebstrap /etc/apt/apt.conf.d/99mmdebstrap
rm -rf /root/.cache /root/.npm /tmp/* /var/tmp/* /var/cache/apt/* /var/lib/apt/lists/* \
    /var/cache/debconf/*-old /var/lib/dpkg/*-old /var/log/*.log /var/log/apt

# A sandbox's user gains nothing by running any program in here.
find / -xdev -type f -perm /6000 -exec chmod ug-s {} +
find / -xdev -type d -perm /6000 -exec chmod ug-s {} +
