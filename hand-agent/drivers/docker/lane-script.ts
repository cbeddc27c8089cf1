/**
 * What runs inside a container for the agent: a shell that takes one line at a time and answers it. Nothing is put into
 * the container for it: any image works that has a POSIX `/bin/sh` and `NEEDED_COMMANDS` (busybox has them all).
 *
 * All that a lane says of itself are marks (`marked-stream.ts`), made with a token that it is told on its input, so that
 * it stands in no argument and no environment. A program of the hand that found it out could only lie about itself.
 *
 * Files are reached below two directories only, by rules that hold while the hand's own processes swap directories for
 * links: what was opened is asked for its real path afterwards, and a directory is entered before it is looked at. What
 * kind of thing a path is gets asked once: of two answers the second may be about something else. (`command exec`: a
 * plain `exec` that cannot open its file ends the shell with a status of its own.)
 */
import type { FileErrorCode } from "../driver.ts";

export const NEEDED_COMMANDS = [
  ...["cat", "chmod", "dd", "find", "head", "ls", "mkdir", "mkfifo"],
  ...["ln", "mv", "readlink", "rm", "stat", "tail"],
] as const;

/** How a file operation ends; the numbers are exit statuses. */
export const FILE_ENDS: Readonly<Record<number, FileErrorCode>> = {
  10: "not_found",
  11: "outside",
  12: "not_a_directory",
  13: "is_a_directory",
  14: "not_a_file",
  15: "permission",
  16: "too_many_links",
  17: "no_space",
};
/** The sender of a file gave up. */
export const CANCELLED_END = 19;

/**
 * The first process of a container. It holds one lane, whose input and output are the container's own, starts it again
 * when something inside has killed it, and waits, which is how what is orphaned gets reaped. No signal from inside ends it.
 */
export const FIRST_SCRIPT = `exec 3<&0 0</dev/null
while :; do
  /bin/sh -c "$1" tendon-lane "$2" "$3" <&3 3<&- &
  wait $! && exit 0
done`;

/**
 * `$1` and `$2` are the two directories. Operations are functions, run in a subshell each, so that none of them can end
 * the lane; their texts go to standard output, their end is their exit status.
 */
export const LANE_SCRIPT = String.raw`exec 3<&0
TENDON_W=$1 TENDON_O=$2 TENDON_N='
'
say() { printf '\001%s %s\001' "$TENDON_T" "$*"; }
why() {
  case $1 in
    '') exit 10 ;;
    *'o such file'*|*'irectory nonexistent'*|*nonexistent\ directory*) exit 10 ;;
    *'ot a directory'*) exit 12 ;;
    *'s a directory'*) exit 13 ;;
    *'ermission denied'*|*'not permitted'*|*'ead-only'*) exit 15 ;;
    *'oo many levels'*|*'link loop'*) exit 16 ;;
    *'o space'*|*'uota exceeded'*) exit 17 ;;
  esac
  printf '%s' "$1"
  exit 18
}
explain() { why "$(LC_ALL=C stat -L -- "$1" 2>&1 >/dev/null)"; }
refuse_kind() {
  M=$(LC_ALL=C stat -c %F -- "$1" 2>&1) || why "$M"
  case $M in
    directory) exit 13 ;;
    regular*|'symbolic link') exit 10 ;;
  esac
  exit 14
}
inside() { case $1/ in "$TENDON_W"/*|"$TENDON_O"/*) ;; *) exit 11 ;; esac; }
real() { P=$(readlink -f -- "$1" && printf x); P=${"$"}{P%?x}; [ "$P" ] || explain "$1"; }
locate() { real "$1"; inside "$P"; }
enter() {
  M=$(LC_ALL=C ls -d -- "$1/." 2>&1 >/dev/null) || why "$M"
  cd -P -- "$1" 2>/dev/null || exit 10
  inside "$(pwd -P)"
}
up() { A=${"$"}{1%/*}; real "${"$"}{A:-/}"; D=${"$"}{1##*/}; }
real_dir() {
  if [ -d "$1" ]; then real "$1"; return; fi
  case $1 in */*/*) real_dir "${"$"}{1%/*}" ;; *) real_dir / ;; esac
  D=${"$"}{1##*/}
  case $D in .|..|'') exit 12 ;; esac
  enter "$P"
  M=$(LC_ALL=C mkdir -m 700 -- "./$D" 2>&1) || {
    [ -L "./$D" ] && explain "./$D"
    [ -d "./$D" ] || {
      [ -e "./$D" ] && exit 12
      case $M in *'ile exists'*) exit 10 ;; esac
      why "$M"
    }
  }
  P=$(pwd -P)/$D
}
do_stat() {
  locate "$1"
  M=$(LC_ALL=C stat -c '%f %s %.3Y' -- "$P" 2>&1) || why "$M"
  printf '%s\n%s' "$M" "$P"
}
do_read() {
  locate "$1"
  [ -d "$P" ] && exit 13
  [ -e "$P" ] || exit 10
  [ -f "$P" ] || refuse_kind "$P"
  [ -r "$P" ] || { locate "$1"; [ -e "$P" ] || exit 10; [ -r "$P" ] || exit 15; }
  command exec 4<"$P" || exit 10
  inside "$(readlink /proc/self/fd/4)"
  say d
  if [ "$2" = 1 ]; then exec cat <&4; else exec tail -c "+$2" <&4; fi
}
do_write() {
  F=$1
  if [ -L "$F" ]; then locate "$F"; F=$P; fi
  case $F in */*/*) real_dir "${"$"}{F%/*}" ;; *) real_dir / ;; esac
  enter "$P"
  D=${"$"}{F##*/}
  case $D in .|..|'') exit 13 ;; esac
  [ -d "./$D" ] && exit 13
  K=$2
  if [ -e "./$D" ] && M=$(LC_ALL=C stat -c '%a %F' -- "./$D" 2>/dev/null); then
    case $M in
      *' regular'*) K=${"$"}{M%% *} ;;
      *' directory') exit 13 ;;
      *' symbolic link') ;;
      *) exit 14 ;;
    esac
    case $K in ????) K=${"$"}{K#?} ;; esac
  fi
  umask 077
  M=$( (LC_ALL=C; : >"./$3") 2>&1 ) || why "$M"
  X=$3
  trap 'rm -f -- "./$X"' EXIT
  say w
  E=
  write_parts 4>"./$3"
  [ "$E" ] && why "$E"
  M=$(LC_ALL=C chmod "$K" -- "./$3" 2>&1 && LC_ALL=C mv -f -- "./$3" "./$D" 2>&1) || why "$M"
}
write_parts() {
  while IFS= read -r C; do
    case $C in 0) return ;; -1) exit 19 ;; esac
    if [ "$E" ]; then
      dd bs="$C" count=1 iflag=fullblock >/dev/null 2>&1
    elif M=$(LC_ALL=C dd bs="$C" count=1 iflag=fullblock 2>&1 >&4); then :
    else E=${"$"}{M:-dd failed}; fi
  done
  exit 19
}
do_mkdir() { real_dir "$1"; enter "$P"; }
do_rename() {
  up "$1"; enter "$P"; S=$(pwd -P)/$D
  up "$2"; enter "$P"
  if [ -d "./$D" ] && [ ! -L "./$D" ]; then exit 13; fi
  M=$(LC_ALL=C mv -f -- "$S" "./$D" 2>&1) || why "$M"
}
do_remove() {
  up "$1"; enter "$P"
  if [ -d "./$D" ] && [ ! -L "./$D" ]; then exit 13; fi
  M=$(LC_ALL=C rm -f -- "./$D" 2>&1) || why "$M"
}
do_link() {
  case $1 in */*/*) real_dir "${"$"}{1%/*}" ;; *) real_dir / ;; esac
  enter "$P"
  D=${"$"}{1##*/}
  if [ -L "./$D" ] || [ -e "./$D" ]; then printf 'there is something already'; exit 18; fi
  M=$(LC_ALL=C ln -s -- "$2" "./$D" 2>&1) || why "$M"
}
do_readlink() {
  up "$1"; enter "$P"
  [ -L "./$D" ] || exit 10
  readlink -- "./$D" || exit 10
}
do_chmod() {
  locate "$1"
  if [ -d "$P" ]; then enter "$P"; F=.; else enter "${"$"}{P%/*}"; F=./${"$"}{P##*/}; fi
  [ -L "$F" ] && exit 10
  M=$(LC_ALL=C chmod "$2" -- "$F" 2>&1) || why "$M"
}
do_walk() {
  locate "$1"; enter "$P"; shift
  say d
  printf '%s\0' "$P"
  find . -mindepth 1 "$@" \( -type f -print0 -o -type d -print0 -print0 -o -type l -print0 -print0 -print0 -o -print0 -print0 -print0 -print0 \) 2>/dev/null
  exit 0
}
do_processes() {
  head -v -c 65536 /proc/[0-9]*/stat /proc/[0-9]*/environ 2>/dev/null
  printf '\n==> fds <==\n'
  ls -l /proc/[0-9]*/fd/60 2>/dev/null
  exit 0
}
do_check() {
  for C in "$@"; do command -v "$C" >/dev/null 2>&1 || printf '%s ' "$C"; done
  exit 0
}
printf '\001hello %s\001' $$
IFS= read -r TENDON_T
while IFS= read -r TENDON_L; do eval "$TENDON_L"; done
exit 0`;

/** A word of a line, whatever is in it but NUL. */
export function quote(text: string): string {
  if (/^[\w/.:=@%+,-]+$/.test(text)) return text;
  return `'${text.replaceAll("'", "'\\''").replaceAll("\n", `'"$TENDON_N"'`)}'`;
}
