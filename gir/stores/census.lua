-- Heartbeat of one replica. KEYS: live replicas (sorted by expiry). ARGV: replica, ttl_s.
-- Answer: number of live replicas.
local clock = redis.call('TIME')
local now = clock[1] + clock[2] / 1000000
redis.call('ZADD', KEYS[1], now + ARGV[2], ARGV[1])
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now)
redis.call('PEXPIRE', KEYS[1], math.ceil(2000 * ARGV[2]))
return redis.call('ZCARD', KEYS[1])
