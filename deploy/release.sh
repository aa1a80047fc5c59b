#!/bin/sh
# Builds what is released into bin/release: an archive for each platform, a Debian
# package for each of Linux', a list of what is in the program (SBOM), and checksums.
# The same sources give the same bytes. Usage: deploy/release.sh [VERSION]
set -eu
cd "$(dirname "$0")/.."

version=${1:-$(git describe --tags --always --dirty 2>/dev/null || echo 0.0.0)}
version=${version#v}
case "$version" in
[0-9]*) debian=$version ;;
*) debian=0.0.0+$version ;; # Debian's versions begin with a digit
esac
SOURCE_DATE_EPOCH=$(git log -1 --format=%ct 2>/dev/null || echo 0)
export SOURCE_DATE_EPOCH CGO_ENABLED=0
out=bin/release
rm -rf "$out"
mkdir -p "$out"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

build() { # os arch file
	GOOS=$1 GOARCH=$2 go build -trimpath -ldflags "-s -w -X main.version=$version" -o "$3" ./cmd/cdc-relay
}

# Pages and completions are the same everywhere, so this machine's program writes them.
build "$(go env GOHOSTOS)" "$(go env GOHOSTARCH)" "$work/cdc-relay"
"$work/cdc-relay" manual "$work/man"
gzip -9n "$work"/man/*.1
mkdir "$work/completions"
for shell in bash zsh fish powershell; do
	"$work/cdc-relay" completion "$shell" >"$work/completions/cdc-relay.$shell"
done

archive() { # os arch
	name=cdc-relay_${version}_$1_$2
	mkdir -p "$work/$name"
	build "$1" "$2" "$work/$name/cdc-relay"
	cp -r README.md LICENSE "$work/man" "$work/completions" "$work/$name/"
	mkdir -p "$work/$name/deploy"
	cp -r deploy/prometheus deploy/grafana deploy/systemd "$work/$name/deploy/"
	tar --sort=name --owner=0 --group=0 --numeric-owner --mtime="@$SOURCE_DATE_EPOCH" -C "$work" -c "$name" | gzip -9n >"$out/$name.tar.gz"
}

package() { # arch
	root=$work/deb-$1
	mkdir -p "$root/DEBIAN" "$root/usr/bin" "$root/etc/cdc-relay" "$root/usr/lib/systemd/system" "$root/usr/lib/sysusers.d" \
		"$root/usr/share/man/man1" "$root/usr/share/bash-completion/completions" "$root/usr/share/zsh/vendor-completions" \
		"$root/usr/share/fish/vendor_completions.d" "$root/usr/share/doc/cdc-relay"
	cp "$work/cdc-relay_${version}_linux_$1/cdc-relay" "$root/usr/bin/"
	cp deploy/debian/cdc-relay.yaml "$root/etc/cdc-relay/"
	cp deploy/systemd/cdc-relay.service "$root/usr/lib/systemd/system/"
	cp deploy/systemd/cdc-relay.sysusers "$root/usr/lib/sysusers.d/cdc-relay.conf"
	cp "$work"/man/*.1.gz "$root/usr/share/man/man1/"
	cp "$work/completions/cdc-relay.bash" "$root/usr/share/bash-completion/completions/cdc-relay"
	cp "$work/completions/cdc-relay.zsh" "$root/usr/share/zsh/vendor-completions/_cdc-relay"
	cp "$work/completions/cdc-relay.fish" "$root/usr/share/fish/vendor_completions.d/"
	cp LICENSE "$root/usr/share/doc/cdc-relay/copyright"
	cp -r README.md deploy/prometheus deploy/grafana "$root/usr/share/doc/cdc-relay/"
	echo /etc/cdc-relay/cdc-relay.yaml >"$root/DEBIAN/conffiles"
	install -m 0755 deploy/debian/postinst deploy/debian/prerm "$root/DEBIAN/"
	cat >"$root/DEBIAN/control" <<-CONTROL
		Package: cdc-relay
		Version: $debian
		Architecture: $1
		Maintainer: the cdc-relay founders <founders@cdc-relay.example>
		Installed-Size: $(du -sk --apparent-size "$root" | cut -f1)
		Recommends: ca-certificates
		Section: net
		Priority: optional
		Description: relay of a PostgreSQL outbox to webhooks
		 Streams the inserts of an outbox table from a logical replication slot and
		 delivers each as a signed HTTP request, in order, without polling; and takes in
		 webhooks of partners, stored once and processed later.
	CONTROL
	find "$root" -exec touch --no-dereference --date="@$SOURCE_DATE_EPOCH" {} +
	find "$root" -type d -exec chmod 0755 {} +
	find "$root" -type f ! -path '*/DEBIAN/*' ! -path '*/bin/*' -exec chmod 0644 {} +
	dpkg-deb --root-owner-group -Zgzip --build "$root" "$out/cdc-relay_${debian}_$1.deb" >/dev/null
}

for platform in linux/amd64 linux/arm64 darwin/amd64 darwin/arm64; do
	echo "building $platform"
	archive "${platform%/*}" "${platform#*/}"
done
if command -v dpkg-deb >/dev/null 2>&1; then
	for arch in amd64 arm64; do
		package "$arch"
	done
else
	echo "dpkg-deb is not on this machine: no Debian packages" >&2
fi
go -C test/deploy build -o "$work/cyclonedx-gomod" github.com/CycloneDX/cyclonedx-gomod/cmd/cyclonedx-gomod
"$work/cyclonedx-gomod" bin -json -noserial -notimestamp -output "$out/cdc-relay_${version}.sbom.json" -version "$version" "$work/cdc-relay_${version}_linux_amd64/cdc-relay" 2>/dev/null
(cd "$out" && sha256sum -- * >SHA256SUMS)
ls -l "$out"
