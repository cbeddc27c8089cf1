/** Which branches may be pushed to: globs where `*` is any text within one part, `**` any text, `?` one character. */

import { normaliseGitUrl } from "../../kit/vault/destination.ts";
import type { GivenRepository } from "../tunnels/sandbox-connection.ts";

type Step = string | { readonly repeats: boolean; readonly crosses: boolean };

export const ONLY_OWN = "a session may push to its own repositories alone";

const BRANCHES = "refs/heads/";
const LONGEST_REF = 1_024;

/**
 * What a push to this repository must keep besides its credential's rules; undefined where it may not be pushed to: a session
 * pushes to the repositories that it was given, and its credentials may be good for many more. Hosts know repositories by more
 * than one name, so one that was not given cannot be told from one that was.
 */
export function rulesOfSession(
  repositoryUrl: string,
  given: readonly GivenRepository[],
): readonly (readonly string[])[] | undefined {
  const those = given.filter(({ url }) => spellingOf(url) === spellingOf(repositoryUrl));
  return those.length === 0 ? undefined : those.map(({ pushBranches }) => pushBranches);
}

/** As the session was given it, where it was: by another spelling of its name it gets no other credential. */
export function givenUrl(repositoryUrl: string, given: readonly GivenRepository[]): string {
  return given.find(({ url }) => spellingOf(url) === spellingOf(repositoryUrl))?.url ?? repositoryUrl;
}

function spellingOf(url: string): string {
  return decodeURIComponent(normaliseGitUrl(url) ?? url).toLowerCase();
}

/** Without patterns everything is allowed; with some, only branches that one of them matches: no tags, no other refs. */
export function mayPush(ref: string, patterns: readonly string[]): boolean {
  if (patterns.length === 0) return true;
  if (!ref.startsWith(BRANCHES) || ref.length > LONGEST_REF) return false;
  const branch = ref.slice(BRANCHES.length);
  return patterns.some((pattern) => matches(branch, pattern));
}

/** All ways at once, so that no pattern makes it slow. */
function matches(text: string, pattern: string): boolean {
  const steps = stepsOf(pattern);
  let at = skipRepeats(new Set([0]), steps);
  for (const character of text) {
    const next = new Set<number>();
    for (const index of at) {
      const step = steps[index];
      if (step === undefined) continue;
      if (typeof step === "string") {
        if (step === character) next.add(index + 1);
      } else if (step.crosses || character !== "/") next.add(step.repeats ? index : index + 1);
    }
    at = skipRepeats(next, steps);
    if (at.size === 0) return false;
  }
  return at.has(steps.length);
}

function stepsOf(pattern: string): Step[] {
  return (pattern.match(/\*+|[\s\S]/gu) ?? []).map((part) => {
    if (part.startsWith("*")) return { repeats: true, crosses: part.length > 1 };
    return part === "?" ? { repeats: false, crosses: false } : part;
  });
}

function skipRepeats(at: Set<number>, steps: readonly Step[]): Set<number> {
  // What is added while the set is walked is walked too.
  for (const index of at) {
    const step = steps[index];
    if (typeof step === "object" && step.repeats) at.add(index + 1);
  }
  return at;
}
