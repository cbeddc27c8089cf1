/** Measures several things in the same stretch of time, so that the machine's mood falls on all of them alike. */

export interface Contender {
  readonly name: string;
  /**
   * One operation; its time is the sample, unless it gives samples of its own (milliseconds): when what is measured ends
   * before the operation does, or in many places.
   */
  once(): Promise<void> | Promise<readonly number[]>;
}

export interface Samples {
  readonly name: string;
  /** Milliseconds, in the order in which they were taken. */
  readonly ms: number[];
}

/**
 * Takes `rounds` rounds; in each, every contender runs `perRound` times, and the order of contenders changes from round
 * to round. The first `warmUp` runs of each are not counted.
 */
export async function interleave(
  contenders: readonly Contender[],
  { rounds, perRound, warmUp }: { rounds: number; perRound: number; warmUp: number },
): Promise<Map<string, Samples>> {
  for (const contender of contenders) for (let i = 0; i < warmUp; i++) await contender.once();
  const samples = new Map(contenders.map(({ name }) => [name, { name, ms: [] as number[] }]));
  for (let round = 0; round < rounds; round++) {
    for (let i = 0; i < contenders.length; i++) {
      const contender = contenders[(i + round) % contenders.length] as Contender;
      const { ms } = samples.get(contender.name) as Samples;
      for (let n = 0; n < perRound; n++) {
        const startedMs = performance.now();
        const own = await contender.once();
        if (own) ms.push(...own);
        else ms.push(performance.now() - startedMs);
      }
    }
  }
  return samples;
}

/** The value below which a share `p` (0 to 1) of the samples lies, by the nearest rank. */
export function percentile(samples: readonly number[], p: number): number {
  if (samples.length === 0) throw new Error("no samples");
  const sorted = [...samples].sort((a, b) => a - b);
  return sorted[Math.min(sorted.length - 1, Math.max(0, Math.ceil(p * sorted.length) - 1))] as number;
}
