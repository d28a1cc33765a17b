#!/bin/bash
# A FlexVolume driver over loop devices: it attaches, mounts, enlarges and detaches for real, and writes down each call.
# DIR/mode may hold "fail CALL", "garbage CALL", "hang CALL", "twice CALL" (it says its answer two times), or "stuck CALL": it
# asks for a file in DIR/stuck, where a server may be that never answers.
DIR=@DIR@
call=$1
echo "$*" >>"$DIR/calls"
mode() { cat "$DIR/mode" 2>/dev/null; }
[ "$(mode)" = "fail $call" ] && { echo '{"status": "Failure", "message": "told to fail"}'; exit 1; }
[ "$(mode)" = "garbage $call" ] && { echo 'Segmentation fault'; exit 0; }
while [ "$(mode)" = "hang $call" ]; do sleep 0.1; done
[ "$(mode)" = "stuck $call" ] && cat "$DIR/stuck/file"
# One call at a time, whoever makes it.
exec 9>>"$DIR/lock"
flock 9
say() {
  printf '{"status": "%s", "message": "%s", "device": "%s"}\n' "$1" "$2" "$3"
  [ "$(mode)" != "twice $call" ] || printf '{"status": "%s", "message": "%s", "device": "%s"}\n' "$1" "$2" "$3"
}
option() { printf '%s' "$2" | sed -n "s|.*\"$1\":\"\([^\"]*\)\".*|\1|p"; }
image() { echo "$DIR/$(option kubernetes.io/pvOrVolumeName "$1").img"; }
attached() { losetup -n -O NAME -j "$1" | head -n 1 | tr -d ' '; }
case $call in
  init) echo '{"status": "Success", "capabilities": {"attach": true, "fsGroup": true, "supportsMetrics": true}}' ;;
  attach)
    image=$(image "$2")
    [ -e "$image" ] || truncate -s 32M "$image"
    device=$(attached "$image")
    [ -n "$device" ] || device=$(losetup -f --show "$image") || { say Failure 'no loop device' ''; exit 1; }
    say Success '' "$device" ;;
  waitforattach)
    [ "$2" = "$(attached "$(image "$3")")" ] || { say Failure "$2 is another disk" ''; exit 1; }
    say Success '' "$2" ;;
  isattached)
    is=false
    [ -z "$(attached "$(image "$2")")" ] || is=true
    printf '{"status": "Success", "attached": %s}\n' $is ;;
  detach)
    device=$(attached "$DIR/$2.img")
    [ -z "$device" ] || losetup -d "$device"
    say Success '' '' ;;
  expandvolume)
    image=$(image "$2")
    truncate -s "$4" "$image" || { say Failure 'no room' ''; exit 1; }
    device=$(attached "$image")
    [ -z "$device" ] || losetup -c "$device"
    say Success '' '' ;;
  *) say 'Not supported' '' ''; exit 1 ;;
esac
