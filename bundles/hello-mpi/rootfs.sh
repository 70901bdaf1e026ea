#!/bin/sh
# Collect the smallest root filesystem that runs a Python MPI program: rootfs.sh TARGET, inside the build stage.
set -eu
root=$1
python=python3.11
stdlib=usr/lib/$python

mkdir -p "$root"
cd "$root"
mkdir -p dev etc home mnt opt proc root run srv sys tmp var/tmp usr/bin usr/lib usr/lib64 usr/sbin usr/local/lib usr/local/bin
chmod 1777 tmp var/tmp
for name in bin lib lib64 sbin; do ln -s usr/$name $name; done
cp -p /etc/passwd /etc/group /etc/nsswitch.conf etc/

# Python and the modules that a job script is likely to import; no TLS, no GUI, no test suites
cp -p /usr/bin/$python usr/bin/
ln -s $python usr/bin/python3
cp -a /$stdlib usr/lib/
cd $stdlib
rm -rf sitecustomize.py config-* curses dbm distutils ensurepip idlelib lib2to3 pydoc_data sqlite3 test tkinter turtledemo unittest venv \
    wsgiref xmlrpc xml asyncio __pycache__/pydoc.* pydoc.py doctest.py
find . -name '*.opt-[12].pyc' -delete
find . '(' -name 'turtle.*' -o -name '_pydecimal.*' ')' -delete
find encodings '(' -name 'cp[0-36-9]*' -o -name 'iso*' -o -name 'mac_*' -o -name '*jis*' -o -name 'koi8*' ')' -delete
cd lib-dynload
rm -f _asyncio.* _codecs_[cjkht]* _crypt.* _curses* _dbm.* _gdbm.* _hashlib.* _multibytecodec.* _sqlite3.* _ssl.* \
    _test* _tkinter.* _uuid.* _xx* audioop.* nis.* ossaudiodev.* readline.* xx*
cd "$root"

# MPI. libmpi.so goes: mpi4py looks for it by that name before libmpi.so.12, and would find the container's where the site's
# MPI has none. libfabric's and UCX's drivers for real fabrics need libraries that only the site has.
packages=usr/local/lib/$python/dist-packages
mkdir -p $packages
cp -a /$packages/mpi4py /$packages/mpi4py-*.dist-info $packages/
find $packages/mpi4py '(' -name '*.h' -o -name '*.px[di]' -o -name '*.pyi' ')' -delete
cp -p /usr/local/lib/libmpi.so.12 usr/local/lib/
cp -a /usr/local/lib/mpich usr/local/lib/
rm -rf usr/local/lib/mpich/libfabric usr/local/lib/mpich/ucx/libuct_ib* usr/local/lib/mpich/ucx/libuct_rdmacm*
cp -p /usr/local/bin/mpiexec.hydra /usr/local/bin/hydra_pmi_proxy usr/local/bin/
ln -s mpiexec.hydra usr/local/bin/mpiexec

# a shell and the usual commands
cp -p /usr/bin/busybox usr/bin/
for name in $(busybox --list); do
    case $name in busybox | init | linuxrc | sh) ;; *) ln -s busybox usr/bin/$name ;; esac
done
ln -s busybox usr/bin/sh

# every library that these load, and the loader itself
find . -type f '(' -name '*.so*' -o -perm -u+x ')' -exec ldd {} + 2>/dev/null |
    sed -n 's/.*=> \(\/[^ ]*\) .*/\1/p; s/^\t\(\/[^ ]*\) .*/\1/p' | sort -u |
    while read -r library; do
        case $library in "$root"/* | /usr/local/*) continue ;; esac
        mkdir -p "./$(dirname "$library")"
        cp -pL "$library" "./$library"
    done
# and what a site's own MPI may need when it takes the place of this one: glibc's libraries, C++ and zlib
for name in libdl.so.2 libgcc_s.so.1 libm.so.6 libnss_files.so.2 libpthread.so.0 libresolv.so.2 librt.so.1 libstdc++.so.6 libutil.so.1 libz.so.1; do
    found=$(find /lib/*-linux-gnu /usr/lib/*-linux-gnu -name $name | head -n 1)
    cp -pL "$found" lib/*-linux-gnu/
done
mkdir -p etc/ld.so.conf.d
cp -p /etc/ld.so.conf etc/
cp -p /etc/ld.so.conf.d/* etc/ld.so.conf.d/
/sbin/ldconfig -r "$root"
rm -rf var/cache
