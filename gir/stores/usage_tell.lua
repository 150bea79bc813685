-- Totals of one replica. KEYS: its rows (hash), all replicas (sorted by when they were last heard of).
-- ARGV: replica, seconds to keep it without a word, since when it counts, then field and value of each row.
local now = tonumber(redis.call('TIME')[1])
redis.call('HSET', KEYS[1], 'since', ARGV[3], unpack(ARGV, 4))
redis.call('EXPIRE', KEYS[1], ARGV[2])
redis.call('ZADD', KEYS[2], now, ARGV[1])
redis.call('ZREMRANGEBYSCORE', KEYS[2], '-inf', now - ARGV[2])
redis.call('EXPIRE', KEYS[2], ARGV[2])
return 1
