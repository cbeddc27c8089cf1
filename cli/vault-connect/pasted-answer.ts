/** For a machine without a browser: the address that another machine's browser was sent back to, from standard input. */
import { createInterface } from "node:readline";
import { type RedirectAnswer, redirectAnswerOf } from "./redirect-answer.ts";

export interface PastedAnswer {
  /** Never resolves when standard input ends without one. */
  readonly answer: Promise<RedirectAnswer>;
  close(): void;
}

/** `refuse` is told of each line that is not the answer with this `state`; the next line may be. */
export function readPastedAnswer(redirectUri: string, state: string, refuse: () => void): PastedAnswer {
  const lines = createInterface({ input: process.stdin, terminal: false });
  const answer = new Promise<RedirectAnswer>((resolve) => {
    lines.on("line", (line) => {
      const text = line.trim();
      const found = redirectAnswerOf(text, redirectUri);
      if (found?.state === state) resolve(found);
      else if (text !== "") refuse();
    });
  });
  return {
    answer,
    close() {
      lines.close();
      // An open standard input would keep the command from ending.
      process.stdin.destroy();
    },
  };
}
