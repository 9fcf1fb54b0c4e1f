/** Connections to the database that a node opens at most: four nodes fit PostgreSQL's own limit of 100 by default. */

export const connectionsDefault = 22;
export const connectionsMin = 10;
