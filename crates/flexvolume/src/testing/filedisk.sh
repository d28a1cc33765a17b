#!/bin/bash
# A FlexVolume driver without devices, for a file server on this machine: a process of its own (fuse2fs) serves each volume, and
# writes its id to DIR/NAME.server. While that process stands still, whoever asks for a file of the volume waits, as with a
# file server that is away. DIR/mode is as loopdisk's.
DIR=@DIR@
call=$1
echo "$*" >>"$DIR/calls"
mode() { cat "$DIR/mode" 2>/dev/null; }
[ "$(mode)" = "fail $call" ] && { echo '{"status": "Failure", "message": "told to fail"}'; exit 1; }
exec 9>>"$DIR/lock"
flock 9
say() { printf '{"status": "%s", "message": "%s"}\n' "$1" "$2"; }
option() { printf '%s' "$2" | sed -n "s|.*\"$1\":\"\([^\"]*\)\".*|\1|p"; }
# The table of mounts is read: a look at the place itself would wait, too.
mounted() { awk -v place="$1" '$5 == place { found = 1 } END { exit !found }' /proc/self/mountinfo; }
case $call in
  init) echo '{"status": "Success", "capabilities": {"attach": false, "fsGroup": false, "supportsMetrics": true}}' ;;
  mount)
    name=$(option kubernetes.io/pvOrVolumeName "$3")
    image=$DIR/$name.img
    [ -e "$image" ] || { truncate -s 32M "$image" && mkfs.ext4 -q "$image"; } || { say Failure 'no disk'; exit 1; }
    mkdir -p "$2"
    if ! mounted "$2"; then
      # In the foreground its id is known; it lets go of this script's output and lock.
      setsid fuse2fs "$image" "$2" -f -o rw,allow_other 9>&- </dev/null >/dev/null 2>&1 &
      server=$!
      until mounted "$2"; do kill -0 $server 2>/dev/null || { say Failure 'the server ended'; exit 1; }; sleep 0.02; done
      echo "$server" >"$DIR/$name.server"
    fi
    say Success '' ;;
  unmount)
    ! mounted "$2" || umount "$2" || { say Failure 'it stays mounted'; exit 1; }
    say Success '' ;;
  *) say 'Not supported' ''; exit 1 ;;
esac
