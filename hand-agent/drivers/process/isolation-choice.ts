/** Which isolation this machine gives: the strongest that works, and for hands with an own uid, where their files go. */
import { describeIsolation, ISOLATION_MODES, type IsolationMode } from "./isolation.ts";

/** One way to make hands. */
export interface Way {
  readonly mode: IsolationMode;
  /** Their files are in the system's folder, because their uid cannot reach them below the data directory. */
  readonly elsewhere: boolean;
}

export type Trial =
  | { readonly works: true; readonly filesDir: string }
  | { readonly works: false; readonly reason: string };

export type Choice = { readonly way: Way; readonly detail: string } | { readonly reason: string };

export const NOT_INSTALLED = "not installed";

export async function chooseIsolation(options: {
  readonly wanted: "auto" | IsolationMode;
  readonly asRoot: boolean;
  /** Makes a hand in this way and looks around from inside. */
  readonly tryWay: (way: Way) => Promise<Trial>;
  /** The folder of a hand's files, for people. */
  readonly folderOf: (filesDir: string) => string;
}): Promise<Choice> {
  const { wanted, asRoot } = options;
  const failures: string[] = [];
  for (const mode of wanted === "auto" ? ISOLATION_MODES : [wanted]) {
    if (mode === "uid" && !asRoot) {
      failures.push("uid: the hand agent is not root");
      continue;
    }
    if (mode === "none" && asRoot && wanted === "auto") return { reason: refusal(failures) };
    const reasons: string[] = [];
    for (const elsewhere of asRoot && mode !== "none" ? [false, true] : [false]) {
      const trial = await options.tryWay({ mode, elsewhere });
      if (trial.works) {
        const where = elsewhere ? `; their files are in ${options.folderOf(trial.filesDir)}` : "";
        const weaker = failures.length > 0 ? ` (${failures.join("; ")})` : "";
        return { way: { mode, elsewhere }, detail: describeIsolation(mode, asRoot) + where + weaker };
      }
      if (!reasons.includes(trial.reason)) reasons.push(trial.reason);
      if (trial.reason === NOT_INSTALLED) break;
    }
    failures.push(`${mode}: ${reasons.join(", and in a folder of the system: ")}`);
  }
  return { reason: failures.join("; ") };
}

/** Root's hands without isolation could read every key on the machine: never without being asked for. */
function refusal(failures: readonly string[]): string {
  return (
    "nothing here keeps hands apart, and as root they could read every key of this machine: install bubblewrap, " +
    "start the hand agent as another user, or accept it with TENDON_HAND_AGENT_ISOLATION=none " +
    `(${failures.join("; ")})`
  );
}
