/** How advice names the command: as it is called from the folder of a checkout. */
export const TENDON = "./tendon";
