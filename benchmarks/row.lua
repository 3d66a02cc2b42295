-- Post one body, read from a file, as fast as answers come; print what was measured as one line of JSON.
-- wrk ... -s row.lua URL -- BODY_FILE "Header: value" ...

function init(args)
   local file = assert(io.open(args[1], "rb"))
   wrk.method = "POST"
   wrk.body = file:read("*a")
   file:close()
   for i = 2, #args do
      local name, value = args[i]:match("^([^:]+): (.*)$")
      wrk.headers[name] = value
   end
   -- Formatted once: 600 KB would otherwise be copied together for each request.
   local request_bytes = wrk.format()
   request = function() return request_bytes end
end

function done(summary, latency, requests)
   local e = summary.errors
   io.write(string.format(
      '{"requests": %d, "duration_us": %d, "p50_us": %d, "p99_us": %d, "failures": %d}\n',
      summary.requests, summary.duration, latency:percentile(50), latency:percentile(99),
      e.connect + e.read + e.write + e.status + e.timeout))
end
