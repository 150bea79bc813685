-- Heartbeat of one replica. KEYS: replicas (sorted by expiry), when each newcomer joined.
-- ARGV: replica (name#id), ttl_s, absent_s; absent_s 0: the replica leaves for good.
-- Answer: {live, absent}. Absent is who fell silent without leaving, for absent_s: it may be serving still, out of our
-- sight. A newcomer of its name that joined since its last heartbeat has taken its place.
local clock = redis.call('TIME')
local now = clock[1] + clock[2] / 1000000
local me, ttl, absent_s = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])

local function forget(replica)
  redis.call('ZREM', KEYS[1], replica)
  redis.call('HDEL', KEYS[2], replica)
end

local function name(replica)
  return string.match(replica, '^(.*)#') or ''
end

if absent_s == 0 then
  forget(me)
else
  if not redis.call('ZSCORE', KEYS[1], me) then
    redis.call('HSET', KEYS[2], me, string.format('%.3f', now))
  end
  redis.call('ZADD', KEYS[1], string.format('%.3f', now + ttl), me)
  redis.call('PEXPIRE', KEYS[1], math.ceil(1000 * (ttl + absent_s)))
  redis.call('PEXPIRE', KEYS[2], math.ceil(1000 * (ttl + absent_s)))
end

-- Who is expected to live longer than a heartbeat promises was heard of when this clock, or that of the server before,
-- was ahead.
local promised = string.format('%.3f', now + ttl)
for _, replica in ipairs(redis.call('ZRANGEBYSCORE', KEYS[1], string.format('(%.3f', now + ttl + 60), '+inf')) do
  redis.call('ZADD', KEYS[1], promised, replica)
end

local joined = {}
local stored = redis.call('HGETALL', KEYS[2])
for i = 1, #stored, 2 do joined[stored[i]] = tonumber(stored[i + 1]) end
local silent = redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', string.format('%.3f', now), 'WITHSCORES')
local absent = 0
for i = 1, #silent, 2 do
  local replica, expiry = silent[i], tonumber(silent[i + 1])
  local heir
  for newcomer, since in pairs(joined) do
    if newcomer ~= replica and name(newcomer) == name(replica) and since >= expiry - ttl then
      local until_s = tonumber(redis.call('ZSCORE', KEYS[1], newcomer) or 0)
      if until_s > now then heir = newcomer end
    end
  end
  if heir then
    forget(replica)
    redis.call('HDEL', KEYS[2], heir)
    joined[replica], joined[heir] = nil, nil
  elseif expiry + absent_s <= now then
    forget(replica)
  else
    absent = absent + 1
  end
end
return {redis.call('ZCARD', KEYS[1]) - absent, absent}
