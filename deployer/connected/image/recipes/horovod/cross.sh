# cross.sh PROCESSOR: replace the compiler proper (cc1plus) and the assembler with those that run on PROCESSOR.
triplet=$(g++ -dumpmachine) version=$(g++ -dumpversion)
package=$(echo "$triplet" | tr _ -)
dpkg --add-architecture "$1"
apt-get update
apt-get install -y --no-install-recommends "libc6:$1" "libgmp10:$1" "libisl23:$1" "libmpc3:$1" "libmpfr6:$1" \
    "libbinutils:$1" "libstdc++6:$1" "libzstd1:$1" "zlib1g:$1"
apt-get download "g++-$version-$package:$1" "binutils-$package:$1"
for deb in *.deb; do dpkg -x "$deb" cross; done
rm -rf ./*.deb /var/lib/apt/lists/*

cp "$(find cross -name cc1plus)" "$(g++ -print-prog-name=cc1plus)"
cp cross/usr/bin/"$triplet-as" "$(readlink -f /usr/bin/as)"
cp -a cross/usr/lib/*-linux-gnu*/lib*.so* "$(dirname "$(find /usr/lib -name libmpfr.so.6 -not -path "*$triplet*")")"

# The folders that a cross compiler searches are the native compiler's.
mkdir -p "/usr/$triplet/include"
ln -s /usr/include/c++ "/usr/$triplet/include/c++"
ln -s "/usr/include/$triplet/c++/$version" "/usr/include/c++/$version/$triplet"
ln -s /usr/lib/gcc /usr/lib/gcc-cross
rm -rf cross
