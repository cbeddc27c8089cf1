/**
 * What the agent writes to a shell for a call, and what the shell answers.
 *
 * A command may leave anything behind in the shell: functions named like builtins, `set -n`, `set -r`, traps, closed
 * descriptors. So that none of it makes a later answer a lie:
 *
 * 1. Between commands the shell rests in POSIX mode, where special builtins (eval, exec, export, unset) come before
 *    functions. An assignment enters it, and an assignment cannot be redefined. Its value carries the command's status.
 * 2. The wrapper needs four more builtins (`NEEDED`); functions of those names are removed after each command.
 * 3. A command is acknowledged at its beginning, when its redirections stand, and answered at its end; both with the
 *    call's number. Redirections are made in POSIX mode, where a failure ends the shell instead of being passed over.
 * 4. After the answer the shell reads one line as data. A shell that does not execute parses it instead, and it is a
 *    syntax error, on which a shell ends at once: nobody waits for an answer that cannot come.
 *
 * Written for bash 3.2 and newer. No process is started. The shell reads its input byte by byte, so text costs time
 * (about 1 µs a byte): what is the same for every call lies in two readonly variables.
 */

/** Inherited by everything a call starts, also by what was forked without an exec. See the process table. */
const MARK_FD = 60;
const CONTROL_FD = 61;
/** `exec` and `shopt` are used after POSIX mode was left; the others are no special builtins. */
const NEEDED = "exec printf read shopt";
/** What POSIX mode turns on and leaving it does not turn off again, since bash 4.4. */
const STICKY_OPTIONS = ["inherit_errexit", "interactive_comments", "sourcepath"];
/** What leaving POSIX mode turns off, whoever had turned it on. */
const DROPPED_OPTIONS = ["expand_aliases", "shift_verbose"];

/** What the user had set when the last command ended, as far as POSIX mode hides it. */
export interface ShellModes {
  readonly isPosix: boolean;
  /** Names of `shopt`. */
  readonly options: readonly string[];
  readonly hasStickyOptions: boolean;
}

export type ShellAnswer =
  | { readonly kind: "started"; readonly callId: string }
  | { readonly kind: "ended"; readonly call: number; readonly code: number; readonly modes: ShellModes };

export interface ScriptedCall {
  /** Counts up within one shell, from 1. */
  readonly number: number;
  readonly callId: string;
  /** Undefined: what the shell has of it stays. */
  readonly traceParent?: string | undefined;
  readonly command: string;
  /** Where its output goes. */
  readonly pipe: string;
}

/** Answers carry `token`, so that nothing else is taken for one; the shell's complaints name `deaf` when it stopped executing. */
export interface ShellTokens {
  readonly token: string;
  readonly deaf: string;
}

/** The first text of a shell. It is answered as the end of call 0. */
export function openingScript(tokens: ShellTokens): string {
  const end = `\\unset -f ${NEEDED} && \\printf "${tokens.token} e %s:%s:%s\\n" "$POSIXLY_CORRECT" "\${BASHOPTS-}" "\${BASH_VERSION-}" >&${CONTROL_FD} && \\read -r _`;
  return [
    `\\exec ${CONTROL_FD}>&1 >/dev/null`,
    `\\readonly TENDON_B=${quote(beginning(tokens, PLAIN_MODES))} TENDON_E=${quote(end)}`,
    ending(tokens, 0),
  ].join("\n");
}

/**
 * Not a loop inside the shell, which `break` would leave, nor a function, in which `declare` would be local. The
 * redirections last for the command; after it the shell has its own descriptors again, whatever the command did.
 * Tracing and traps of the user's see the first line of the body too: what they print then is not the command's output.
 */
export function callScript(tokens: ShellTokens, modes: ShellModes, call: ScriptedCall): string {
  const begin = isPlain(modes) ? '"$TENDON_B"' : quote(beginning(tokens, modes));
  const redirect = `</dev/null ${MARK_FD}>${quote(call.pipe)} >&${CONTROL_FD} 2>&1 ${CONTROL_FD}>&-`;
  const trace = call.traceParent === undefined ? "" : ` TRACEPARENT=${quote(call.traceParent)}`;
  return [
    `\\export TENDON_CALL_ID=${quote(call.callId)}${trace}`,
    `\\eval ${begin}${quote(`\n${call.command}`)} ${redirect}`,
    ending(tokens, call.number),
  ].join("\n");
}

/** Where a step of it failed the expansion ends the shell: the command must not run without its own output. */
function beginning({ token }: ShellTokens, modes: ShellModes): string {
  const steps = [
    ...leavePosixMode(modes),
    `\\printf "${token} b %s\\n" "$TENDON_CALL_ID"`,
    `\\exec >&${MARK_FD} 2>&1`,
  ];
  return `${steps.join(" && ")} || \${TENDON_FAILED:?}`;
}

function ending({ deaf }: ShellTokens, number: number): string {
  return `POSIXLY_CORRECT="${number} $? \${POSIXLY_CORRECT+p}"\n\\eval "$TENDON_E"\n)${deaf}\n`;
}

/** Of a shell whose modes nobody changed, by far the most frequent. */
const PLAIN_MODES: ShellModes = {
  isPosix: false,
  options: ["interactive_comments", "sourcepath"],
  hasStickyOptions: true,
};

function isPlain(modes: ShellModes): boolean {
  return leavePosixMode(modes).join() === leavePosixMode(PLAIN_MODES).join();
}

function leavePosixMode({ isPosix, options, hasStickyOptions }: ShellModes): string[] {
  const has = (name: string) => options.includes(name);
  const off = hasStickyOptions ? STICKY_OPTIONS.filter((name) => !has(name)) : [];
  const shopt = (flag: string, names: readonly string[]) =>
    names.length === 0 ? [] : [`\\shopt ${flag} ${names.join(" ")}`];
  if (isPosix) {
    off.push(...DROPPED_OPTIONS.filter((name) => !has(name)));
    return ["POSIXLY_CORRECT=y", ...shopt("-u", off)];
  }
  return ["\\unset -v POSIXLY_CORRECT", ...shopt("-u", off), ...shopt("-s", DROPPED_OPTIONS.filter(has))];
}

/** Undefined for anything but an answer of this shell. Something unfinished may stand before it in its line. */
export function parseAnswer({ token }: ShellTokens, line: string): ShellAnswer | undefined {
  const at = line.lastIndexOf(`${token} `);
  if (at < 0) return undefined;
  const answer = line.slice(at + token.length + 1);
  const [, callId] = /^b (.+)$/.exec(answer) ?? [];
  if (callId !== undefined) return { kind: "started", callId };
  const [, call, code, posix, rest = ""] = /^e (\d+) (\d+) (p?):(.*)$/.exec(answer) ?? [];
  if (call === undefined) return undefined;
  const options = rest.split(":");
  const [, major, minor] = /^(\d+)\.(\d+)/.exec(options.pop() ?? "") ?? [];
  const modes: ShellModes = {
    isPosix: posix === "p",
    options,
    hasStickyOptions: Number(major) > 4 || (Number(major) === 4 && Number(minor) >= 4),
  };
  return { kind: "ended", call: Number(call), code: Number(code), modes };
}

function quote(text: string): string {
  if (/^[\w/.-]+$/.test(text)) return text;
  return `'${text.replaceAll("'", "'\\''")}'`;
}
