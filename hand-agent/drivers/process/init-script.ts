/**
 * The first process of a hand: a bash that starts processes on request and reaps what is orphaned. It is written for
 * bash 3.2, so that it also runs where bash is old.
 *
 * Requests arrive on standard input as fields that end in NUL:
 *   pipes DIR N NAME…            makes named pipes
 *   run ID IN OUT ERR CWD N ENV… M ARG…   starts a process; IN, OUT and ERR are named pipes
 * Answers go to descriptor 3, one short line each, so that lines of different processes never mix:
 *   ready · pipes STATUS · pid ID PID · exit ID STATUS
 * Descriptors that the agent itself had inherited are closed first. When standard input ends, the agent is gone and everything ends.
 */
export const INIT_SCRIPT = `set +m
umask 022
for fd in /proc/self/fd/* /dev/fd/*; do
  fd=\${fd##*/}
  case $fd in 0 | 1 | 2 | 3 | 255 | '*') ;; *) eval "exec $fd>&-" ;; esac
done 2>/dev/null
field() { IFS= read -r -d '' "$1"; }
list() {
  local count item
  fields=()
  field count || return
  while [ "$count" -gt 0 ]; do
    field item || return
    fields+=("$item")
    count=$((count - 1))
  done
}
run() {
  (
    exec 0<"$in" 1>"$out" 2>"$err"
    printf 'pid %s %s\\n' "$id" "\${BASHPID:-$(exec sh -c 'echo $PPID')}" >&3
    exec 3>&-
    if [ "\${#env[@]}" -gt 0 ]; then export "\${env[@]}"; fi
    cd -- "$cwd" || exit 126
    exec -- "\${argv[@]}"
  )
  printf 'exit %s %s\\n' "$id" "$?" >&3
}
printf 'ready\\n' >&3
while field op; do
  case $op in
    pipes)
      field dir && list || exit 1
      ( cd -- "$dir" && exec mkfifo -m 600 -- "\${fields[@]}" )
      printf 'pipes %s\\n' "$?" >&3
      ;;
    run)
      field id && field in && field out && field err && field cwd || exit 1
      list || exit 1
      env=(\${fields[@]+"\${fields[@]}"})
      list || exit 1
      argv=(\${fields[@]+"\${fields[@]}"})
      run &
      ;;
  esac
done
kill -KILL 0
`;
