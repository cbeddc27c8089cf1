/** What Ctrl-C means in a conversation. */

export interface CtrlCSituation {
  /** Whether somebody sits at a terminal. */
  readonly isInteractive: boolean;
  /** "none" while the agent rests. */
  readonly turn: "none" | "runs" | "interrupted";
  /** What stands on the line that is being typed. */
  readonly typed: string;
  /** Whether the Ctrl-C before asked for this one, and nothing was typed since. */
  readonly isAskedAgain: boolean;
}

export type CtrlCAction = "quit" | "interrupt" | "clear_line" | "ask_again";

export function ctrlCAction({ isInteractive, turn, typed, isAskedAgain }: CtrlCSituation): CtrlCAction {
  if (turn === "runs") return "interrupt";
  if (turn === "interrupted" || !isInteractive) return "quit";
  if (typed !== "") return "clear_line";
  return isAskedAgain ? "quit" : "ask_again";
}
