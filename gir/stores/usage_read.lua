-- Totals of the fleet. KEYS: all replicas (sorted by when they were last heard of), then rows of those asked for.
-- Answer: {{replica, heard, ...}, {field, value, ...} for each of those asked for}.
local rows = {redis.call('ZRANGE', KEYS[1], 0, -1, 'WITHSCORES')}
for i = 2, #KEYS do rows[i] = redis.call('HGETALL', KEYS[i]) end
return rows
