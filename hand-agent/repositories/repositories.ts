/**
 * Gives a new hand its repositories, one after the other, with the hand's own git. One that cannot be had keeps no hand from
 * being made: what is wrong is told, and nothing of it is left.
 *
 * Where the hand has a relay, git's requests go through it to the proxy, which has the credential, and the proxy is asked
 * before. A hand with the machine's network has no such way: there git goes straight out, and has no credential.
 */
import { join, resolve } from "node:path";
import type { Clock } from "../../kit/clock.ts";
import { messageOf } from "../../kit/errors.ts";
import type { Logger } from "../../kit/log.ts";
import type { ProvisionCommand } from "../../proto/gen/tendon/v1/hand_agent_service_pb.js";
import type { GitRepository } from "../../proto/gen/tendon/v1/hand_pb.js";
import { type ExitStatus, type Hand, HandError, type HandPipe } from "../drivers/driver.ts";
import type { SandboxTunnels } from "../tunnels/sandbox-tunnels.ts";
import { askForAccess } from "./access.ts";
import type { CloneCache, Kept } from "./clone-cache.ts";
import { BUNDLE_SCRIPT, CLONE_EXITS, CLONE_SCRIPT, REMOVE_SCRIPT } from "./clone-script.ts";
import { type RepositoryOutcome, RepositoryProblem } from "./outcome.ts";
import { runScript, textOf } from "./run-script.ts";

export interface RepositoriesDeps {
  readonly tunnels: Pick<SandboxTunnels, "connect">;
  readonly cache: CloneCache;
  readonly clock: Clock;
  readonly log: Logger;
}

export interface GiveOptions {
  /** For all of them together. */
  readonly withinMs: number;
  /** Whether git in the hand reaches the proxy. */
  readonly hasRelay: boolean;
  readonly signal: AbortSignal;
}

const ATTEMPTS = 3;
const AGAIN_AFTER_MS = 1_000;
/** A hand's `/workspace`, in the field's words, is its working directory wherever that is. */
const WORKSPACE = /^\/workspace(?=\/|$)/;

export class Repositories {
  private readonly deps: RepositoriesDeps;

  constructor(deps: RepositoriesDeps) {
    this.deps = deps;
  }

  /** In the order of the resources. Rejects only when `signal` does. */
  async give(
    hand: Hand,
    { resources }: Pick<ProvisionCommand, "resources">,
    { withinMs, hasRelay, signal }: GiveOptions,
  ): Promise<RepositoryOutcome[]> {
    const wanted = resources.flatMap(({ kind }) => (kind.case === "gitRepository" ? [kind.value] : []));
    if (wanted.length === 0) return [];
    const limit = new AbortController();
    const stop = this.deps.clock.after(withinMs, () =>
      limit.abort(
        new RepositoryProblem(
          "clone",
          "sandbox",
          `it was not cloned within ${Math.round(withinMs / 1000)} s`,
        ),
      ),
    );
    const both = AbortSignal.any([signal, limit.signal]);
    try {
      const outcomes: RepositoryOutcome[] = [];
      for (const [index, repository] of wanted.entries()) {
        const clone = new Clone(this.deps, hand, repository, index + 1, both);
        outcomes.push(await clone.outcome(hasRelay));
        signal.throwIfAborted();
        // What was cut off could not clear up after itself.
        if (limit.signal.aborted) await clone.remove(signal);
      }
      return outcomes;
    } finally {
      stop();
    }
  }
}

class Clone {
  private readonly deps: RepositoriesDeps;
  private readonly hand: Hand;
  private readonly repository: GitRepository;
  private readonly path: string;
  private readonly callId: string;
  private readonly seedPath: string;
  private readonly signal: AbortSignal;

  constructor(
    deps: RepositoriesDeps,
    hand: Hand,
    repository: GitRepository,
    number: number,
    signal: AbortSignal,
  ) {
    this.deps = deps;
    this.hand = hand;
    this.repository = repository;
    this.path = pathIn(hand, repository);
    this.callId = `repository-${number}`;
    this.seedPath = join(hand.outputsDir, `.${this.callId}.bundle`);
    this.signal = signal;
  }

  async outcome(hasRelay: boolean): Promise<RepositoryOutcome> {
    const { path, repository } = this;
    const { url } = repository;
    try {
      return { url, path, commit: await this.tryToMake(hasRelay) };
    } catch (error) {
      const { failure, part, message } = this.problemOf(error);
      this.deps.log.info({ handId: this.hand.id, url, failure, part }, "a repository was not cloned");
      return { url, path, failure, part, message };
    }
  }

  async remove(signal: AbortSignal): Promise<void> {
    const { hand, path, callId } = this;
    await runScript(
      hand,
      { script: REMOVE_SCRIPT, args: [path, this.seedPath], callId, read: textOf },
      signal,
    ).catch(() => {});
  }

  /** The only place where cloning is tried again: a proxy or a host that is away for a moment costs no hand its repository. */
  private async tryToMake(hasRelay: boolean): Promise<string> {
    for (let attempt = 1; ; attempt += 1) {
      try {
        return await this.make(hasRelay);
      } catch (error) {
        const mayPass = error instanceof RepositoryProblem && error.mayPass;
        if (!mayPass || attempt === ATTEMPTS) throw error;
        await this.deps.clock.sleep(attempt * AGAIN_AFTER_MS, this.signal);
      }
    }
  }

  /** Gives the commit that is checked out. */
  private async make(hasRelay: boolean): Promise<string> {
    if (!hasRelay) return (await this.clone(undefined)).commit;
    const { tunnels, cache } = this.deps;
    const handId = this.hand.id;
    const { rights } = await askForAccess(
      this.repository.url,
      (to, signal) => tunnels.connect({ handId, kind: "git", ...to }, signal),
      this.signal,
    );
    // Only what these rights have fetched before: the host has just said that they still hold.
    const key = cache.keyOf(this.repository.url, rights);
    const kept = key === undefined ? undefined : await cache.find(key);
    const { commit, tips } = await this.clone(kept);
    if (key !== undefined && commit !== "" && tips !== kept?.tips) await this.keep(key, tips);
    return commit;
  }

  private async clone(kept: Kept | undefined): Promise<{ commit: string; tips: string }> {
    const { url, branch, tag, commit } = this.repository;
    const seed = kept === undefined ? "" : await this.putSeed(kept);
    const args = [url, this.path, branch, tag, commit, seed];
    const script = { script: CLONE_SCRIPT, args, callId: this.callId, read: textOf };
    const { code, out, err } = await runScript(this.hand, script, this.signal);
    if (code !== 0) throw cloneProblem(code, err, this.path, url);
    const [at = "", tips = ""] = out.split("\n");
    return { commit: at, tips };
  }

  /** A seed that cannot be put there is done without. */
  private async putSeed(kept: Kept): Promise<string> {
    const path = this.seedPath;
    try {
      await this.hand.writeFile(path, kept.read(), { mode: 0o600, signal: this.signal });
      return path;
    } catch (error) {
      this.signal.throwIfAborted();
      this.deps.log.warn({ handId: this.hand.id, error: messageOf(error) }, "a kept clone was not used");
      await this.hand.remove(path).catch(() => {});
      return "";
    }
  }

  /** For the next hand. What goes wrong here is no failure of the clone. */
  private async keep(key: string, tips: string): Promise<void> {
    const { cache, log } = this.deps;
    const { hand, signal, callId } = this;
    const read = ({ chunks }: HandPipe, exit: Promise<ExitStatus>) =>
      cache.store(key, tips, chunks, async () => (await exit).code === 0);
    try {
      await runScript(hand, { script: BUNDLE_SCRIPT, args: [this.path], callId, read }, signal);
    } catch (error) {
      log.warn({ handId: hand.id, error: messageOf(error) }, "a clone was not kept for the next hand");
    }
  }

  private problemOf(error: unknown): RepositoryProblem {
    const why = this.signal.aborted ? this.signal.reason : error;
    if (why instanceof RepositoryProblem) return why;
    if (why instanceof HandError) return new RepositoryProblem("clone", "sandbox", why.message);
    this.deps.log.error({ err: why, handId: this.hand.id }, "a repository could not be cloned");
    return new RepositoryProblem("clone", "hand_agent", "the hand agent failed; its log says more");
  }
}

function pathIn({ workdir }: Hand, { path, url }: GitRepository): string {
  const name = /([^/]+?)(?:\.git)?\/*$/.exec(url)?.[1] ?? "repository";
  return resolve(workdir, path === "" ? name : path.replace(WORKSPACE, workdir));
}

/** Of what git printed, with its own words translated to none. */
function cloneProblem(code: number, text: string, path: string, url: string): RepositoryProblem {
  const said = text.trim() || `git ended with ${code}`;
  switch (code) {
    case CLONE_EXITS.noGit:
      return new RepositoryProblem("clone", "sandbox", "the hand has no git");
    case CLONE_EXITS.notEmpty:
      return new RepositoryProblem("clone", "sandbox", `${path} is there already and not empty`);
    case CLONE_EXITS.notCheckedOut:
      return new RepositoryProblem("checkout", "upstream", said);
  }
  if (/could not read Username|Authentication failed/.test(text)) {
    const why = `authentication failed: ${new URL(url).host} wants a credential. Credentials are used for containers, and for hands with the network "none" or "limited" alone`;
    return new RepositoryProblem("authentication", "upstream", why);
  }
  if (/returned error: 403/.test(text)) return new RepositoryProblem("forbidden", "upstream", said);
  if (/repository '[^']*' not found|returned error: 404/.test(text))
    return new RepositoryProblem("not_found", "upstream", said);
  return new RepositoryProblem("clone", "upstream", said, true);
}
