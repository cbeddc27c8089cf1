/** Ids are a word's prefix and 26 characters: 48 bits of milliseconds, then 80 random bits, in Crockford's base 32. They sort by age. */
import { randomBytes } from "node:crypto";

export const ID_PREFIXES = {
  workspace: "wrkspc_",
  agent: "agent_",
  environment: "env_",
  session: "sesn_",
  thread: "sthr_",
  event: "sevt_",
  handAgent: "hagt_",
  hand: "hand_",
  execution: "exec_",
  vault: "vlt_",
  credential: "vcrd_",
  memoryStore: "memstore_",
  memory: "mem_",
  memoryVersion: "memver_",
  file: "file_",
  sessionResource: "sesrsc_",
  skill: "skill_",
  skillVersion: "skver_",
  apiKey: "apikey_",
  joinToken: "jointok_",
  environmentKey: "envkey_",
  work: "work_",
  webhookEndpoint: "whep_",
  webhookEvent: "whevt_",
  webhookDelivery: "whdlv_",
  deployment: "depl_",
  deploymentRun: "drun_",
  lease: "lease_",
  harness: "hrns_",
  proxy: "prxy_",
  replica: "rplc_",
  request: "req_",
  journal: "jrnl_",
  installation: "inst_",
  audit: "audit_",
} as const;

export type IdKind = keyof typeof ID_PREFIXES;

const ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz";

function base32(value: bigint, length: number): string {
  let text = "";
  for (let rest = value, i = 0; i < length; i++, rest >>= 5n) text = ALPHABET[Number(rest & 31n)] + text;
  return text;
}

const RANDOM_BYTES = 10;
/** Randomness is fetched for many ids at once: asking for it costs more than all the rest of an id. */
let randomness = Buffer.alloc(0);

function takeRandom(): bigint {
  if (randomness.length < RANDOM_BYTES) randomness = randomBytes(RANDOM_BYTES * 100);
  const taken = randomness.toString("hex", 0, RANDOM_BYTES);
  randomness = randomness.subarray(RANDOM_BYTES);
  return BigInt(`0x${taken}`);
}

export function newId(kind: IdKind, nowMs: number = Date.now()): string {
  const random = takeRandom();
  return ID_PREFIXES[kind] + base32(BigInt(nowMs), 10) + base32(random, 16);
}

const ID_BODY = /^[A-Za-z0-9_-]{1,64}$/;

/** Whether `id` has the form of an id of this kind. Ids made elsewhere (clients may choose event ids) pass too. */
export function isId(kind: IdKind, id: string): boolean {
  const prefix = ID_PREFIXES[kind];
  return id.startsWith(prefix) && ID_BODY.test(id.slice(prefix.length));
}

/** Whether `id` can name a session or one of its threads, which have logs alike. */
export function isSessionId(id: string): boolean {
  return isId("session", id) || isId("thread", id);
}

/** The id of the outcome that this event defines. */
export function outcomeIdOf(eventId: string): string {
  return `outc_${eventId.slice(ID_PREFIXES.event.length)}`;
}
