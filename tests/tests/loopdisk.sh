#!/bin/bash
# A FlexVolume driver over loop devices: it attaches, mounts and detaches for real, and writes down each call.
# DIR/mode may hold "fail CALL" or "garbage CALL".
DIR=@DIR@
call=$1
echo "$*" >>"$DIR/calls"
mode=$(cat "$DIR/mode" 2>/dev/null)
[ "$mode" = "fail $call" ] && { echo '{"status": "Failure", "message": "told to fail"}'; exit 1; }
[ "$mode" = "garbage $call" ] && { echo 'Segmentation fault'; exit 0; }
say() { printf '{"status": "%s", "message": "%s", "device": "%s"}\n' "$1" "$2" "$3"; }
option() { printf '%s' "$2" | sed -n "s|.*\"$1\":\"\([^\"]*\)\".*|\1|p"; }
attached() { losetup -n -O NAME -j "$1" | head -n 1 | tr -d ' '; }
case $call in
  init) echo '{"status": "Success", "capabilities": {"attach": true, "fsGroup": true}}' ;;
  attach)
    image=$DIR/$(option kubernetes.io/pvOrVolumeName "$2").img
    [ -e "$image" ] || truncate -s 32M "$image"
    device=$(attached "$image")
    [ -n "$device" ] || device=$(losetup -f --show "$image") || { say Failure 'no loop device' ''; exit 1; }
    say Success '' "$device" ;;
  waitforattach) say Success '' "$2" ;;
  detach)
    device=$(attached "$DIR/$2.img")
    [ -z "$device" ] || losetup -d "$device"
    say Success '' '' ;;
  *) say 'Not supported' '' ''; exit 1 ;;
esac
